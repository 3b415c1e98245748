//! The configuration: what it is, where it comes from, and changes of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::NoParams;
use outpost_wire::app::config::{
    ConfigBatchWrite, ConfigBatchWriteParams, ConfigEdit, ConfigLayer, ConfigLayerSource, ConfigOrigin, ConfigRead, ConfigReadParams,
    ConfigReadResponse, ConfigRequirementsRead, ConfigRequirementsResponse, ConfigValueWrite, ConfigValueWriteParams, ConfigWriteResponse,
    ConfigWriteStatus, MergeStrategy, OverriddenMetadata, PermissionProfile, PermissionProfileList, PermissionProfileListParams,
    PermissionProfileListResponse,
};
use serde_json::Value;

use super::choices::PROFILES;
use crate::configuration::{ConfigEditError, Edit, FileLayer, UserConfiguration, lay_over, leaves};
use crate::connection::ClientConnection;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<ConfigRead, _, _>(read)
        .on::<ConfigValueWrite, _, _>(write_value)
        .on::<ConfigBatchWrite, _, _>(write_batch)
        .on::<ConfigRequirementsRead, _, _>(requirements)
        .on::<PermissionProfileList, _, _>(profiles)
}

pub(super) fn refused(error: ConfigEditError) -> Fault {
    if error.is_of_the_machine() { Fault::internal(error) } else { Fault::invalid_request(error) }
}

/// `config.toml` as it is now.
fn user(configuration: &UserConfiguration, version: String) -> ConfigOrigin {
    ConfigOrigin { name: ConfigLayerSource::User { file: configuration.file().display().to_string() }, version }
}

/// What was said on the command line.
fn flags() -> ConfigOrigin {
    ConfigOrigin { name: ConfigLayerSource::SessionFlags, version: String::new() }
}

async fn read(connection: Arc<ClientConnection>, params: ConfigReadParams) -> Result<ConfigReadResponse, Fault> {
    let configuration = &connection.server.configuration;
    let FileLayer { config: written, version } = configuration.written().map_err(refused)?;
    let over = configuration.over();
    let user = user(configuration, version);
    let from = |value: &Value, origin: &ConfigOrigin| leaves(value).into_iter().map(|key| (key, origin.clone())).collect::<Vec<_>>();
    let origins: BTreeMap<_, _> = from(&written, &user).into_iter().chain(from(over, &flags())).collect();
    let mut config = written.clone();
    if over.is_object() {
        lay_over(&mut config, over);
    }
    effective(&connection, &mut config);
    let layer = |origin: ConfigOrigin, config: &Value| ConfigLayer {
        name: origin.name,
        version: origin.version,
        config: config.clone(),
        disabled_reason: None,
    };
    let layers = params.include_layers.then(|| vec![layer(flags(), over), layer(user, &written)]);
    Ok(ConfigReadResponse { config, origins, layers })
}

/// Clients look for these, even where they are not set.
fn effective(connection: &ClientConnection, config: &mut Value) {
    let Some(members) = config.as_object_mut() else { return };
    let running = connection.server.runtime.config();
    members.entry("model").or_insert_with(|| running.model.clone().into());
    members.entry("model_provider").or_insert_with(|| running.model_provider.clone().into());
    members.entry("sandbox_mode").or_insert_with(|| running.sandbox.name().into());
    members.entry("approval_policy").or_insert_with(|| serde_json::to_value(running.approval).unwrap_or_default());
}

async fn write_value(connection: Arc<ClientConnection>, params: ConfigValueWriteParams) -> Result<ConfigWriteResponse, Fault> {
    let ConfigValueWriteParams { key_path, value, merge_strategy, file_path, expected_version } = params;
    write(connection, vec![ConfigEdit { key_path, value, merge_strategy }], file_path, expected_version).await
}

async fn write_batch(connection: Arc<ClientConnection>, params: ConfigBatchWriteParams) -> Result<ConfigWriteResponse, Fault> {
    write(connection, params.edits, params.file_path, params.expected_version).await
}

async fn write(
    connection: Arc<ClientConnection>,
    edits: Vec<ConfigEdit>,
    file: Option<String>,
    expected: Option<String>,
) -> Result<ConfigWriteResponse, Fault> {
    let server = connection.server.clone();
    let written = tokio::task::spawn_blocking(move || {
        let configuration = &server.configuration;
        let own = configuration.file();
        if let Some(other) = file.filter(|file| std::path::Path::new(file) != own) {
            return Err(Fault::invalid_request(format!("only {} can be written, not {other}", own.display())));
        }
        let edit = |edit: &ConfigEdit| Edit {
            key_path: edit.key_path.clone(),
            value: edit.value.clone(),
            merges: edit.merge_strategy == MergeStrategy::Upsert,
        };
        let all: Vec<Edit> = edits.iter().map(edit).collect();
        let version = configuration.write(&all, expected.as_deref()).map_err(refused)?;
        let overridden_metadata = edits.iter().find_map(|edit| overridden(configuration, edit));
        let status = if overridden_metadata.is_some() { ConfigWriteStatus::OkOverridden } else { ConfigWriteStatus::Ok };
        Ok(ConfigWriteResponse { status, version, file_path: own.display().to_string(), overridden_metadata })
    });
    written.await.map_err(Fault::internal)?
}

/// Whether something stands over what was written.
fn overridden(configuration: &UserConfiguration, edit: &ConfigEdit) -> Option<OverriddenMetadata> {
    let effective_value = configuration.over_at(&edit.key_path)?.clone();
    let message = format!("`{}` was set on the command line as well, and that counts", edit.key_path);
    Some(OverriddenMetadata { message, overriding_layer: flags(), effective_value })
}

async fn requirements(connection: Arc<ClientConnection>, _params: NoParams) -> Result<ConfigRequirementsResponse, Fault> {
    Ok(ConfigRequirementsResponse { requirements: connection.server.facts.requirements.clone() })
}

async fn profiles(
    _connection: Arc<ClientConnection>,
    _params: PermissionProfileListParams,
) -> Result<PermissionProfileListResponse, Fault> {
    let profile = |(id, _): &(&str, &str)| PermissionProfile { id: (*id).to_owned(), description: None, allowed: true };
    Ok(PermissionProfileListResponse { data: PROFILES.iter().map(profile).collect(), next_cursor: None })
}

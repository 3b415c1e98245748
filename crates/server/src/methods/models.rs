//! The models that threads can ask: the configured one, and those whose windows are configured.

use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::models::{Model, ModelList, ModelListParams, ModelListResponse, ReasoningEffort};

use crate::connection::ClientConnection;
use crate::table::Table;

pub fn register(table: Table) -> Table {
    table.on::<ModelList, _, _>(list)
}

async fn list(connection: Arc<ClientConnection>, _params: ModelListParams) -> Result<ModelListResponse, Fault> {
    let config = connection.server.runtime.config();
    let others = config.context_windows.keys().filter(|name| **name != config.model && *name != "default");
    let names = std::iter::once(&config.model).chain(others);
    let data = names.map(|name| model(name, &config.model_provider, *name == config.model)).collect();
    Ok(ModelListResponse { data, next_cursor: None })
}

fn model(name: &str, provider: &str, is_default: bool) -> Model {
    let efforts = ["low", "medium", "high"];
    let effort = |word: &&str| ReasoningEffort { reasoning_effort: (*word).into(), description: format!("{word} effort") };
    Model {
        id: name.into(),
        model: name.into(),
        display_name: name.into(),
        description: format!("served by {provider}"),
        hidden: false,
        is_default,
        default_reasoning_effort: "medium".into(),
        supported_reasoning_efforts: efforts.iter().map(effort).collect(),
        input_modalities: vec!["text".into(), "image".into()],
        supports_personality: false,
        upgrade: None,
        service_tiers: vec![],
        default_service_tier: None,
        additional_speed_tiers: vec![],
        availability_nux: None,
        available_access_programs: None,
        model_specialty: None,
        multi_agent_version: None,
        upgrade_info: None,
        model_provider: provider.into(),
    }
}

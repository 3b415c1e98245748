//! The models that threads can ask: the configured one, and those of which something is configured.

use std::collections::BTreeSet;
use std::sync::Arc;

use outpost_runtime::model::ModelFacts;
use outpost_wire::Fault;
use outpost_wire::app::models::{Model, ModelList, ModelListParams, ModelListResponse, ReasoningEffort};

use crate::connection::ClientConnection;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table.on::<ModelList, _, _>(list)
}

async fn list(connection: Arc<ClientConnection>, _params: ModelListParams) -> Result<ModelListResponse, Fault> {
    let config = connection.server.runtime.config();
    let others: BTreeSet<&String> = config.context_windows.keys().chain(config.models.keys()).collect();
    let others = others.into_iter().filter(|name| **name != config.model && *name != "default");
    let names = std::iter::once(&config.model).chain(others);
    let data = names.map(|name| model(name, &config.facts(name), &config.model_provider, *name == config.model)).collect();
    Ok(ModelListResponse { data, next_cursor: None })
}

fn model(name: &str, facts: &ModelFacts, provider: &str, is_default: bool) -> Model {
    let usual = || ["low", "medium", "high"].map(str::to_owned).to_vec();
    let efforts = if facts.efforts.is_empty() { usual() } else { facts.efforts.clone() };
    let effort = |word: &String| ReasoningEffort { reasoning_effort: word.clone(), description: format!("{word} effort") };
    let modalities = if facts.vision { &["text", "image"][..] } else { &["text"] };
    Model {
        id: name.into(),
        model: name.into(),
        display_name: name.into(),
        description: format!("served by {provider}"),
        hidden: false,
        is_default,
        default_reasoning_effort: "medium".into(),
        supported_reasoning_efforts: efforts.iter().map(effort).collect(),
        input_modalities: modalities.iter().map(|modality| (*modality).to_owned()).collect(),
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

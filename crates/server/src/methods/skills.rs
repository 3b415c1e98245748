//! Skills for lists of clients. None are known to the server itself yet.

use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::Nothing;
use outpost_wire::app::skills::{
    SkillsExtraRootsSet, SkillsExtraRootsSetParams, SkillsList, SkillsListEntry, SkillsListParams, SkillsListResponse,
};

use super::lists::places;
use crate::connection::Connection;
use crate::table::Table;

pub fn register(table: Table) -> Table {
    table.on::<SkillsList, _, _>(list).on::<SkillsExtraRootsSet, _, _>(set_extra_roots)
}

async fn list(connection: Arc<Connection>, params: SkillsListParams) -> Result<SkillsListResponse, Fault> {
    let entry = |cwd| SkillsListEntry { cwd, skills: vec![], errors: vec![] };
    Ok(SkillsListResponse { data: places(&connection, params.cwds).into_iter().map(entry).collect() })
}

/// No roots at all is what there is already.
async fn set_extra_roots(_connection: Arc<Connection>, params: SkillsExtraRootsSetParams) -> Result<Nothing, Fault> {
    if params.extra_roots.is_empty() {
        return Ok(Nothing {});
    }
    Err(Fault::invalid_request("skills are found in capability roots: name the folders in `selectedCapabilityRoots` of the thread"))
}

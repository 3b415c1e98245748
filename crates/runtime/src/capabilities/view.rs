//! What the capability roots of a thread come to, for clients of a server and for `/why` of a conversation alike.

use outpost_wire::app::thread::{CapabilityPlugin, CapabilityProblem, CapabilityRootState, CapabilitySkill, ThreadCapabilities};

use super::{CapabilityWarning, RootReport, StepCapabilities};
use crate::plugins::Plugin;
use crate::skills::Skill;

impl From<&StepCapabilities> for ThreadCapabilities {
    fn from(step: &StepCapabilities) -> Self {
        Self {
            roots: step.roots.iter().map(root).collect(),
            skills: step.skills.iter().map(skill).collect(),
            plugins: step.plugins.iter().map(plugin).collect(),
            warnings: step.warnings.iter().map(problem).collect(),
        }
    }
}

fn root(root: &RootReport) -> CapabilityRootState {
    CapabilityRootState {
        id: root.id.clone(),
        environment_id: root.environment_id.to_string(),
        path: root.path.clone(),
        available: root.available,
        reason: root.reason.clone(),
        skills: root.skills as u64,
        plugin: root.plugin.clone(),
        warnings: root.warnings.clone(),
    }
}

fn skill(skill: &Skill) -> CapabilitySkill {
    CapabilitySkill {
        name: skill.name.clone(),
        description: skill.description.clone(),
        address: skill.locator.clone(),
        environment_id: skill.environment.to_string(),
    }
}

fn plugin(plugin: &Plugin) -> CapabilityPlugin {
    CapabilityPlugin {
        name: plugin.name.clone(),
        root: plugin.root.clone(),
        environment_id: plugin.environment.to_string(),
        directory: plugin.directory.to_syntax(),
        mcp_servers: plugin.mcp_servers.iter().map(|server| server.name.clone()).collect(),
        hooks_not_run: plugin.hooks.clone(),
        installed: plugin.is_installed,
    }
}

fn problem(warning: &CapabilityWarning) -> CapabilityProblem {
    CapabilityProblem { environment_id: warning.environment.to_string(), path: warning.path.clone(), message: warning.message.clone() }
}

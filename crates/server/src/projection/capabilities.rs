//! What the capability roots of a thread come to, as clients see it.

use outpost_runtime::capabilities::{CapabilityWarning, RootReport, StepCapabilities};
use outpost_runtime::plugins::Plugin;
use outpost_runtime::skills::Skill;
use outpost_wire::app::thread::{CapabilityPlugin, CapabilityProblem, CapabilityRootState, CapabilitySkill, ThreadCapabilities};

pub fn capabilities(step: &StepCapabilities) -> ThreadCapabilities {
    ThreadCapabilities {
        roots: step.roots.iter().map(root).collect(),
        skills: step.skills.iter().map(skill).collect(),
        plugins: step.plugins.iter().map(plugin).collect(),
        warnings: step.warnings.iter().map(problem).collect(),
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

//! In whose place a session runs: the variables and the directory that its commands inherit, what is told about the machine, and
//! what its requests may reach. Usually that is the program of the executor itself.

use std::sync::{Arc, OnceLock};

use outpost_wire::exec::environment::EnvironmentInfo;

use crate::config::ExecutorConfig;
use crate::http::{HttpClients, HttpGuard};
use crate::info;

pub(crate) struct SessionCaller {
    pub config: Arc<ExecutorConfig>,
    pub http: HttpClients,
    /// Without what sandboxes hold; found out when it is first asked for.
    info: OnceLock<EnvironmentInfo>,
    /// With it. This is tried with processes, so that a client which only wants to begin does not wait for it.
    full_info: OnceLock<EnvironmentInfo>,
}

impl SessionCaller {
    pub(crate) fn new(config: ExecutorConfig) -> Arc<Self> {
        let http = HttpClients::new(HttpGuard::new(config.http_allow.clone()));
        Arc::new(Self { config: Arc::new(config), http, info: OnceLock::new(), full_info: OnceLock::new() })
    }

    pub(crate) fn info(&self, instance_id: &str) -> &EnvironmentInfo {
        self.info.get_or_init(|| info::gather(&self.config, instance_id.to_owned()))
    }

    pub(crate) fn full_info(&self, instance_id: &str) -> &EnvironmentInfo {
        self.full_info.get_or_init(|| info::with_card(self.info(instance_id).clone(), &self.config))
    }
}

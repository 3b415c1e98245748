//! What an environment's own entry leaves of the policy of the threads that work there.

/// Nothing in it means that the thread's policy holds as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Narrowing {
    /// The most that a sandbox may allow.
    pub sandbox: Option<Fence>,
    /// Whether the network may be used, if the thread may use it.
    pub no_network: bool,
    /// Of what a thread may write, only what is also below these is writable. Absolute paths there.
    pub writable_roots: Option<Vec<String>>,
    /// Counts besides the thread's own.
    pub approval_policy: Option<NarrowedApproval>,
    /// Devices that sandboxes there show besides the harmless ones.
    pub devices: Vec<String>,
    /// Whether nothing runs there without a sandbox.
    pub confined: bool,
    /// The file of an administrator that says some of it for every environment.
    pub required_by: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    ReadOnly,
    WorkspaceWrite,
}

/// When the user is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NarrowedApproval {
    Untrusted,
    OnRequest,
    Never,
}

impl Narrowing {
    /// Whether work must be confined there, whatever the thread says.
    pub fn is_bounded(&self) -> bool {
        self.sandbox.is_some() || self.no_network || self.writable_roots.is_some() || self.confined
    }

    /// This one and what an administrator requires of every environment.
    #[must_use]
    pub fn and_required(&self, required: &Self) -> Self {
        Self {
            no_network: self.no_network || required.no_network,
            confined: self.confined || required.confined,
            devices: self.devices.clone(),
            sandbox: self.sandbox.or(required.sandbox),
            writable_roots: self.writable_roots.clone().or_else(|| required.writable_roots.clone()),
            approval_policy: self.approval_policy.or(required.approval_policy),
            required_by: required.required_by.clone(),
        }
    }

    /// What it says, in words for people and models.
    pub fn words(&self) -> String {
        let sandbox = self.sandbox.map(|fence| match fence {
            Fence::ReadOnly => "nothing is written",
            Fence::WorkspaceWrite => "only the workspace is written",
        });
        let network = self.no_network.then_some("no network");
        let roots = self.writable_roots.as_ref().map(|roots| format!("writes only below {}", roots.join(", ")));
        let asking = self.approval_policy.map(|asking| match asking {
            NarrowedApproval::Untrusted => "every command is asked for",
            NarrowedApproval::OnRequest => "the user is asked to leave the sandbox",
            NarrowedApproval::Never => "the user is not asked for more",
        });
        let confined = (self.confined && self.sandbox.is_none()).then_some("nothing runs without a sandbox");
        let parts = sandbox
            .or(confined)
            .map(str::to_owned)
            .into_iter()
            .chain(network.map(str::to_owned))
            .chain(roots)
            .chain(asking.map(str::to_owned));
        parts.collect::<Vec<_>>().join("; ")
    }
}

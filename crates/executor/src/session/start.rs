//! A start, from the moment at which its id is taken until its process runs, or will not.

use std::sync::Arc;

use outpost_sandbox::policy::{NetworkRule, Policy};
use outpost_sandbox::{Child, Launch, LaunchError, LaunchIo, OrderedStart, TerminalSize};
use outpost_wire::Fault;
use outpost_wire::exec::process::{ProcessMetadata, ProcessSummary, SandboxType, StartParams};
use tokio_util::sync::CancellationToken;

use super::{ExecutorSession, ProcessEntry};
use crate::adoption::Beside;
use crate::carried::Carried;
use crate::git::RepositoryInUse;
use crate::process::{self, Adoption, Process};
use crate::snapshot::ShellState;
use crate::{fault, variables};

/// What others see of it meanwhile.
pub(crate) struct Starting {
    fingerprint: String,
    argv: Vec<String>,
    metadata: Option<ProcessMetadata>,
    tty: bool,
    /// The process is not wanted any more.
    ended: CancellationToken,
    /// It runs, or will not.
    over: CancellationToken,
}

impl Starting {
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// As one that has not exited: a session with a start under way is not idle.
    pub(super) fn summary(&self, process_id: String) -> ProcessSummary {
        ProcessSummary {
            process_id,
            argv: self.argv.clone(),
            metadata: self.metadata.clone(),
            pid: None,
            tty: self.tty,
            next_seq: 1,
            exited: false,
            exit_code: None,
            closed: false,
        }
    }

    /// Called under the session's lock, so that it comes either before the process is there or finds it there.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }
}

/// What became of the wish to start something.
pub(crate) enum Claim {
    New(StartPermit),
    /// The same start is on its way.
    Underway(Arc<Starting>),
    /// The same start was made before.
    Known,
}

/// The right to start a process under an id; the id is free again when this is dropped and nothing was started.
pub(crate) struct StartPermit {
    session: Arc<ExecutorSession>,
    id: String,
    starting: Arc<Starting>,
}

impl ExecutorSession {
    /// Takes the id of a start. The same id with the same parameters is the same start.
    pub(crate) fn claim(self: &Arc<Self>, params: &StartParams) -> Result<Claim, Fault> {
        params.cwd.to_native().map_err(|error| fault::foreign_cwd(&params.cwd.to_string(), &error))?;
        if params.network_proxy.is_some() || (params.enforce_managed_network && params.sandbox.is_some()) {
            return Err(fault::proxy_unsupported());
        }
        if params.argv.is_empty() {
            return Err(fault::empty_argv());
        }
        if params.connect.as_ref().is_some_and(|connect| connect.port == 0 || params.tty || !params.pipe_stdin) {
            return Err(fault::bad_connection());
        }
        let fingerprint = process::fingerprint(params);
        let mut state = self.lock();
        if state.ended {
            return Err(fault::session_ended());
        }
        match state.processes.get(&params.process_id) {
            Some(existing) if existing.fingerprint() != fingerprint => Err(fault::process_exists(&params.process_id)),
            Some(ProcessEntry::Starting(starting)) => Ok(Claim::Underway(starting.clone())),
            Some(ProcessEntry::Live(_) | ProcessEntry::Past(_)) => Ok(Claim::Known),
            None => {
                let starting = Starting {
                    fingerprint,
                    argv: params.argv.clone(),
                    metadata: params.metadata.clone(),
                    tty: params.tty,
                    ended: CancellationToken::new(),
                    over: CancellationToken::new(),
                };
                let start = StartPermit { session: self.clone(), id: params.process_id.clone(), starting: Arc::new(starting) };
                state.processes.insert(start.id.clone(), ProcessEntry::Starting(start.starting.clone()));
                Ok(Claim::New(start))
            }
        }
    }
}

/// What the wire calls the confinement of a process.
pub(crate) fn sandbox_type(policy: &Policy) -> SandboxType {
    match policy {
        Policy::Open => SandboxType::None,
        Policy::Confined(_) => SandboxType::LinuxSeccomp,
    }
}

/// What a start needs besides its parameters.
struct StartPlan {
    /// The session in whose sandboxes it is started.
    home: Arc<ExecutorSession>,
    launch: Launch,
    /// The policy as far as files are concerned.
    touched: Policy,
    notices: Vec<String>,
    in_use: RepositoryInUse,
}

impl ExecutorSession {
    /// What comes of an order to start something here; where that has to be made anew, it may take long.
    async fn outcome(self: &Arc<Self>, ordered: OrderedStart, launch: &Launch) -> Result<Child, LaunchError> {
        match self.owner.outcome(ordered).await? {
            Some(child) => Ok(child),
            None => self.launch_for_us(launch.clone()).await,
        }
    }
}

impl StartPermit {
    /// Does what has to be done before; cut short when the process is not wanted any more.
    pub(crate) async fn prepare<T>(&self, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        self.starting.ended.run_until_cancelled(work).await.unwrap_or_else(|| Err(self.ended()))
    }

    fn ended(&self) -> Fault {
        fault::ended_while_starting(&self.id)
    }

    /// Starts the process, in a sandbox of another one if it is given. Waits, on this thread, until it runs; the lock is not held,
    /// because that may take long. Returns the policy that it runs under.
    pub(crate) fn launch(self, params: StartParams, snapshot: Option<&ShellState>, beside: Option<Beside>) -> Result<Policy, Fault> {
        let plan = self.plan(&params, snapshot, beside)?;
        let child = plan.home.with_owner(|owner| owner.start(&plan.launch));
        self.settle(child, plan, params)
    }

    /// The same for a start that is over at once, as a rule: the order is given now, and what comes of it is waited for beside other
    /// starts, also once the client does not wait for it any more.
    pub(crate) fn order(self, params: StartParams, snapshot: Option<&ShellState>) -> Result<Carried<Result<Policy, Fault>>, Fault> {
        let plan = self.plan(&params, snapshot, None)?;
        let ordered = plan.home.with_owner(|owner| owner.order(&plan.launch));
        Ok(Carried::new(async move {
            let child = match ordered {
                Ok(ordered) => plan.home.outcome(ordered, &plan.launch).await,
                Err(error) => Err(error),
            };
            self.settle(child, plan, params)
        }))
    }

    /// Everything that has to be known before the order is given. From here on the start is known also if everything ends.
    fn plan(&self, params: &StartParams, snapshot: Option<&ShellState>, beside: Option<Beside>) -> Result<StartPlan, Fault> {
        let session = &self.session;
        let cwd = params.cwd.to_native().map_err(|error| fault::foreign_cwd(&params.cwd.to_string(), &error))?;
        let connect = params.connect.as_ref().map(|connect| connect.port);
        let (home, policy) = match beside {
            Some(Beside { session, policy }) => (session, policy),
            None => (session.clone(), session.start_policy(params)?),
        };
        // A relay touches no file.
        let touched = if connect.is_some() { Policy::Open } else { policy.clone() };
        let (notices, in_use) = session.before_command(&touched);
        let (program, arguments) = params.argv.split_first().ok_or_else(fault::empty_argv)?;
        let launch = Launch {
            program: program.into(),
            arg0: params.arg0.as_ref().map(Into::into),
            args: match snapshot {
                Some(snapshot) => snapshot.arguments(&params.argv),
                None => arguments.iter().map(Into::into).collect(),
            },
            env: match snapshot {
                Some(snapshot) => variables::restore(&snapshot.variables, params.env_policy.as_ref(), &params.env),
                None => variables::build(&session.caller().config.variables, params.env_policy.as_ref(), &params.env),
            },
            cwd,
            io: if params.tty { LaunchIo::Terminal(terminal_size(params)) } else { LaunchIo::Pipes { stdin: params.pipe_stdin } },
            policy,
            connect,
        };
        if self.starting.ended.is_cancelled() {
            return Err(self.ended());
        }
        // Before the launch: if everything ends right after it, the start is known.
        session.fates.note(|journal| journal.started(&session.id, &self.id, &self.starting.fingerprint));
        Ok(StartPlan { home, launch, touched, notices, in_use })
    }

    /// Makes a process of the session of what was started.
    fn settle(self, child: Result<Child, LaunchError>, plan: StartPlan, params: StartParams) -> Result<Policy, Fault> {
        let session = &self.session;
        let StartPlan { launch: Launch { policy, connect, .. }, touched, notices, in_use, .. } = plan;
        let forget = || session.fates.note(|journal| journal.forgotten(&session.id, &self.id));
        let child = child.map_err(|error| {
            forget();
            connect.map_or_else(|| fault::launch(&error), |port| fault::no_connection(port, &error))
        })?;
        let mut state = session.lock();
        // In both cases the child goes with it.
        if state.ended {
            return Err(fault::session_ended());
        }
        if self.starting.ended.is_cancelled() {
            forget();
            return Err(self.ended());
        }
        let is_offline = touched.rules().is_some_and(|rules| rules.network == NetworkRule::Restricted);
        let fingerprint = self.starting.fingerprint.clone();
        let adoption = Adoption { fingerprint, policy: touched, is_offline, notices, in_use };
        let process = Process::adopt(child, params, adoption, session);
        state.processes.insert(self.id.clone(), ProcessEntry::Live(process.clone()));
        process.push_all_to(state.attachment.clone());
        Ok(policy)
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        let mut state = self.session.lock();
        if let Some(ProcessEntry::Starting(current)) = state.processes.get(&self.id)
            && Arc::ptr_eq(current, &self.starting)
        {
            state.processes.remove(&self.id);
        }
        drop(state);
        self.starting.over.cancel();
    }
}

fn terminal_size(params: &StartParams) -> TerminalSize {
    params.terminal_size.map_or_else(TerminalSize::default, |size| TerminalSize { rows: size.rows, cols: size.cols })
}

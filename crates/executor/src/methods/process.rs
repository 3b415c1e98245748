//! `process/*`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost_rpc::{Lane, Router};
use outpost_sandbox::policy::Policy;
use outpost_sandbox::{Signal, TerminalSize};
use outpost_wire::Fault;
use outpost_wire::exec::adoption::Adopt;
use outpost_wire::exec::process::{
    self as wire, CloseStdin, List, ListResponse, Read, ReadParams, ReadResponse, Resize, ResizeParams, SendSignal, Start, StartParams,
    StartResponse, Terminate, TerminateResponse, Write, WriteParams, WriteResponse, WriteStatus,
};
use outpost_wire::exec::session::Empty;

use super::native;
use crate::attachment::SessionAttachment;
use crate::carried::Carried;
use crate::connection::ExecutorConnection;
use crate::input::WriteError;
use crate::process::ReadRequest;
use crate::session::{Claim, ExecutorSession, ProcessEntry, sandbox_type};
use crate::{fault, past};

fn admit(connection: &ExecutorConnection) -> Result<(), Fault> {
    connection.admit("exec")
}

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router
        .on::<Start, _, _>(Lane::Ordinary, admit, |connection, params| async move { start(&connection, params).await })
        .on::<Read, _, _>(Lane::Ordinary, admit, |connection, params| async move { read(&connection, params).await })
        .on::<Write, _, _>(Lane::Ordinary, admit, |connection, params| async move { write(&connection, params).await })
        .on::<CloseStdin, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let status = match find(&connection, &params.process_id)? {
                Some(ProcessEntry::Live(process)) => process.close_input().await,
                Some(ProcessEntry::Starting(_)) => WriteStatus::Starting,
                Some(ProcessEntry::Past(_)) => WriteStatus::StdinClosed,
                None => WriteStatus::UnknownProcess,
            };
            Ok(WriteResponse { status })
        })
        .on::<SendSignal, _, _>(Lane::Control, admit, |connection, params| async move {
            if let Some(ProcessEntry::Live(process)) = find(&connection, &params.process_id)? {
                process.signal(native_signal(params.signal));
            }
            Ok(Empty {})
        })
        .on::<Terminate, _, _>(Lane::Control, admit, |connection, params| async move {
            let (session, _) = connection.session()?;
            Ok(TerminateResponse { running: session.terminate(&params.process_id) })
        })
        .on::<Adopt, _, _>(Lane::Ordinary, admit, |connection, params| async move {
            let (session, attachment) = connection.session()?;
            let adopted = connection.executor().adoptions.adopt(&params, &session).await?;
            note_asker(&session, &params.process_id, &attachment);
            Ok(adopted)
        })
        .on::<Resize, _, _>(Lane::Control, admit, |connection, params| async move { resize(&connection, &params) })
        .on::<List, _, _>(Lane::Ordinary, admit, |connection, _| async move {
            let (session, _) = connection.session()?;
            Ok(ListResponse { processes: session.list() })
        })
}

fn find(connection: &ExecutorConnection, id: &str) -> Result<Option<ProcessEntry>, Fault> {
    let (session, _) = connection.session()?;
    Ok(session.process(id))
}

fn note_asker(session: &ExecutorSession, id: &str, attachment: &Arc<SessionAttachment>) {
    if let Some(ProcessEntry::Live(process)) = session.process(id) {
        process.note_asked_by(attachment);
    }
}

async fn start(connection: &ExecutorConnection, params: StartParams) -> Result<StartResponse, Fault> {
    let (session, attachment) = connection.session()?;
    let process_id = params.process_id.clone();
    let (adoption, adoptions) = (params.adoption.clone(), &connection.executor().adoptions);
    let begin = || adoption.as_ref().map_or(Ok(()), |claim| adoptions.begin(&process_id, claim, &session));
    let pace = Pace::of(&params, connection, &session);
    let neighbours = params.connect.as_ref().map(|connect| connect.beside.clone()).filter(|processes| !processes.is_empty());
    // After what waits for the starts before it.
    drop(connection.start_turn().await);
    let policy = loop {
        match session.claim(&params)? {
            Claim::New(start) => {
                begin()?;
                let beside = match &neighbours {
                    Some(processes) => Some(adoptions.beside(processes).ok_or_else(fault::no_sandbox)?),
                    None => None,
                };
                let snapshot = start.prepare(session.snapshot(&params)).await?;
                let (executor, home, id, claim) = (connection.executor().clone(), session.clone(), process_id.clone(), adoption.clone());
                let started = move |policy: &Policy| {
                    if let Some(claim) = &claim {
                        executor.adoptions.started(&id, &claim.secret, &home, policy.clone());
                    }
                };
                let policy = match (pace, beside) {
                    (Pace::Quick, None) => {
                        let _turn = connection.start_turn().await;
                        let ordered = start.order(params, snapshot.as_deref())?;
                        // It can be adopted also if the connection ends meanwhile.
                        Carried::new(async move { ordered.await.inspect(started) }).await?
                    }
                    (_, beside) => pace.run(&session, move || start.launch(params, snapshot.as_deref(), beside)).await.inspect(started)?,
                };
                break Some(policy);
            }
            Claim::Known => {
                begin()?;
                // What it was started beside has a policy that this start does not name; it may be gone by now.
                if let Some(processes) = &neighbours {
                    break adoptions.beside(processes).map(|beside| beside.policy);
                }
                let known = session.clone();
                break Some(pace.run(&session, move || known.start_policy(&params)).await?);
            }
            // What becomes of it is the answer to this one, too.
            Claim::Underway(starting) => starting.over().await,
        }
    };
    note_asker(&session, &process_id, &attachment);
    Ok(StartResponse { process_id, sandbox_type: policy.as_ref().map(sandbox_type) })
}

/// How long a start may take.
#[derive(Clone, Copy)]
enum Pace {
    /// It is over at once.
    Quick,
    /// A sandbox is made by looking at many files, and what runs in one can stop the task that starts the next program there.
    Slow,
    /// It connects with a program, which listens but need not take connections.
    Connecting,
    /// It is on a mount that may hang. No client causes that, and it holds up no other start.
    Hanging,
}

impl Pace {
    fn of(params: &StartParams, connection: &ExecutorConnection, session: &ExecutorSession) -> Self {
        let may_hang = |path: &Path| connection.executor().slow_mounts.hold(path);
        let program = params.argv.first().map(Path::new).is_some_and(may_hang);
        if params.connect.is_some() {
            Self::Connecting
        } else if program || params.cwd.to_native().is_ok_and(|cwd| may_hang(&cwd)) {
            Self::Hanging
        } else if session.confines(params.sandbox.as_ref()) {
            Self::Slow
        } else {
            Self::Quick
        }
    }

    async fn run<T: Send + 'static>(
        self,
        session: &ExecutorSession,
        work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let _turn = match self {
            Self::Quick => return work(),
            Self::Slow => session.launch_turn().await,
            Self::Connecting => session.connect_turn().await,
            Self::Hanging => None,
        };
        native::blocking(work).await
    }
}

async fn read(connection: &ExecutorConnection, params: ReadParams) -> Result<ReadResponse, Fault> {
    let (session, attachment) = connection.session()?;
    let process = match session.process(&params.process_id) {
        Some(ProcessEntry::Live(process)) => process,
        Some(ProcessEntry::Starting(_)) => return Err(fault::process_starting(&params.process_id)),
        Some(ProcessEntry::Past(fate)) => return Ok(past::read(&fate)),
        None => return Err(fault::unknown_process(&params.process_id)),
    };
    process.note_asked_by(&attachment);
    let request = ReadRequest {
        after_seq: params.after_seq.unwrap_or(0),
        max_bytes: params.max_bytes,
        wait: Duration::from_millis(params.wait_ms.unwrap_or(0)),
        with_gaps: attachment.with_gaps(),
    };
    // A connection that lost the session must not get its output any more.
    let read = async {
        let answer = process.read(&request).await;
        if answer.chunks.is_empty() || connection.has_room() {
            return answer;
        }
        // Any number of reads may wait for the same output: those for which there is no room keep nothing of it meanwhile.
        drop(answer);
        let _turn = connection.output_turn().await;
        process.read_now(&request).0
    };
    let answer = attachment.revoked().run_until_cancelled(read).await;
    let answer = answer.filter(|_| !attachment.revoked().is_cancelled()).ok_or_else(fault::taken_over)?;
    // Nor must a session that the process has left meanwhile.
    if process.has_left(&session) { Err(fault::unknown_process(&params.process_id)) } else { Ok(answer) }
}

async fn write(connection: &ExecutorConnection, params: WriteParams) -> Result<WriteResponse, Fault> {
    if params.write_id.is_empty() {
        return Err(fault::empty_write_id());
    }
    let process = match find(connection, &params.process_id)? {
        Some(ProcessEntry::Live(process)) => process,
        Some(ProcessEntry::Starting(_)) => return Ok(WriteResponse { status: WriteStatus::Starting }),
        Some(ProcessEntry::Past(_)) => return Err(fault::stdin_broken()),
        None => return Ok(WriteResponse { status: WriteStatus::UnknownProcess }),
    };
    match process.write(params.write_id, params.chunk.0).await {
        Ok(status) => Ok(WriteResponse { status }),
        Err(WriteError::Broken) => Err(fault::stdin_broken()),
        Err(WriteError::NoRoom { limit }) => Err(fault::no_room_for_input(limit)),
    }
}

fn resize(connection: &ExecutorConnection, params: &ResizeParams) -> Result<Empty, Fault> {
    let process = match find(connection, &params.process_id)? {
        Some(ProcessEntry::Live(process)) => process,
        Some(ProcessEntry::Starting(_)) => return Err(fault::process_starting(&params.process_id)),
        Some(ProcessEntry::Past(_)) => return Err(fault::no_terminal(&params.process_id)),
        None => return Err(fault::unknown_process(&params.process_id)),
    };
    let size = TerminalSize { rows: params.rows, cols: params.cols };
    process.resize(size).ok_or_else(|| fault::no_terminal(&params.process_id))?.map_err(fault::file)?;
    Ok(Empty {})
}

fn native_signal(signal: wire::Signal) -> Signal {
    match signal {
        wire::Signal::Interrupt => Signal::Interrupt,
        wire::Signal::Terminate => Signal::Terminate,
        wire::Signal::Hangup => Signal::Hangup,
        wire::Signal::Quit => Signal::Quit,
        wire::Signal::Kill => Signal::Kill,
        wire::Signal::Usr1 => Signal::User1,
        wire::Signal::Usr2 => Signal::User2,
        wire::Signal::Winch => Signal::WindowChanged,
    }
}

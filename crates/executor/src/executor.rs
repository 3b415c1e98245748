//! The executor: its sessions, and what it serves on every link.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_rpc::peer::LinkEnd;
use outpost_rpc::{Link, Peer, Router};
use outpost_wire::exec::environment::EnvironmentInfo;
use tokio::time::{sleep, timeout};

use crate::attachment::Attachment;
use crate::config::ExecutorConfig;
use crate::connection::Connection;
use crate::http::HttpClients;
use crate::session::Session;
use crate::{info, methods};

/// How long the end of an executor waits for killed processes to be gone.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// What the end of a link means for its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// It waits for the client to come back.
    Grace,
    /// It ends.
    Link,
}

/// Cheap to clone; all clones are one executor.
#[derive(Clone)]
pub struct Executor(Arc<Shared>);

pub(crate) struct Shared {
    pub config: Arc<ExecutorConfig>,
    pub info: EnvironmentInfo,
    pub router: Router<Connection>,
    pub http: HttpClients,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
}

impl Executor {
    pub fn new(config: ExecutorConfig) -> Self {
        let info = info::gather(&config, (config.ids)());
        Self(Arc::new(Shared {
            config: Arc::new(config),
            info,
            router: methods::router(),
            http: HttpClients::default(),
            sessions: Mutex::default(),
        }))
    }

    /// Serves one link until it ends.
    pub async fn serve(&self, link: Link, lifetime: Lifetime) -> LinkEnd {
        let name = link.name.clone();
        let mut connection = None;
        let (_, driver) = Peer::new(link, self.0.config.peer.clone(), |peer| {
            let service = Arc::new(Connection::new(self.0.clone(), peer.clone()));
            connection = Some(service.clone());
            service
        });
        let end = driver.await;
        tracing::debug!(link = name, ?end, "link ended");
        if let Some((session, attachment)) = connection.and_then(|connection| connection.attached()) {
            self.0.release(&session, &attachment, lifetime);
        }
        end
    }

    /// Ends all sessions and waits, for a while, until their processes are gone.
    pub async fn shut_down(&self) {
        let sessions: Vec<_> = self.0.sessions().drain().map(|(_, session)| session).collect();
        let processes: Vec<_> = sessions.iter().flat_map(|session| session.end()).collect();
        let _ = timeout(LAST_WAIT, async {
            for process in processes {
                process.closed().await;
            }
        })
        .await;
    }

    pub fn session_count(&self) -> usize {
        self.0.sessions().len()
    }
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn create_session(&self) -> Arc<Session> {
        let session = Session::new((self.config.ids)(), self.config.clone());
        self.sessions().insert(session.id().to_owned(), session.clone());
        session
    }

    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).cloned()
    }

    pub fn end_session(&self, session: &Arc<Session>) {
        self.sessions().remove(session.id());
        session.end();
    }

    fn release(self: &Arc<Self>, session: &Arc<Session>, attachment: &Arc<Attachment>, lifetime: Lifetime) {
        let Some(epoch) = session.detach(attachment) else { return };
        match lifetime {
            Lifetime::Link => self.end_session(session),
            Lifetime::Grace => {
                let (executor, session) = (self.clone(), session.clone());
                tokio::spawn(async move {
                    sleep(session.config().grace).await;
                    if session.expire(epoch) {
                        executor.sessions().remove(session.id());
                    }
                });
            }
        }
    }
}

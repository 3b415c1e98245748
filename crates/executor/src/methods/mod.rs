//! Where wire shapes become our nouns, one file per family.

mod attributes;
mod calls;
mod discovery;
mod environment;
mod files;
mod http;
mod native;
mod packs;
mod process;
mod session;
mod streams;
mod walk;
mod watch;

use outpost_rpc::Router;

pub(crate) use self::native::{blocking, gate};

use crate::connection::ExecutorConnection;

pub(crate) fn router() -> Router<ExecutorConnection> {
    let router = Router::default();
    let router = session::routes(router);
    let router = environment::routes(router);
    let router = process::routes(router);
    let router = files::routes(router);
    let router = streams::routes(router);
    let router = packs::routes(router);
    let router = attributes::routes(router);
    let router = walk::routes(router);
    let router = discovery::routes(router);
    let router = watch::routes(router);
    let router = calls::routes(router);
    http::routes(router)
}

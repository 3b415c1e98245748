//! `capabilityRoots/discoverV1`.

use futures_util::{StreamExt, stream};
use outpost_rpc::{Lane, Router};
use outpost_wire::Fault;
use outpost_wire::exec::discovery::{Discover, DiscoverParams, DiscoverResponse, DiscoverRoot, DiscoveredRoot};

use crate::connection::Connection;
use crate::discovery::{self, MAX_ROOTS};
use crate::fault;
use crate::methods::native::{blocking, gate, native};

/// So many roots are looked at at the same time.
const AT_ONCE: usize = 8;
/// All roots of one answer may take so many bytes: it has to fit a message.
const MAX_ANSWER: usize = 24 << 20;

pub fn routes(router: Router<Connection>) -> Router<Connection> {
    let admit = |connection: &Connection| connection.admit("capability discovery");
    router.on::<Discover, _, _>(Lane::Ordinary, admit, |connection, params| async move { discover(&connection, params).await })
}

async fn discover(connection: &Connection, params: DiscoverParams) -> Result<DiscoverResponse, Fault> {
    if params.roots.len() > MAX_ROOTS {
        return Err(fault::too_many_roots(MAX_ROOTS));
    }
    let _turn = connection.bulk_turn().await;
    let mut roots: Vec<DiscoveredRoot> = stream::iter(params.roots).map(|root| look(connection, root)).buffered(AT_ONCE).collect().await;
    let mut total = 0;
    for root in &mut roots {
        total += discovery::weight(root);
        if total > MAX_ANSWER {
            let error = "what it holds does not fit into the answer beside the roots before it; ask for it alone";
            let error = discovery::inspection_failed(&root.path, &error);
            *root = DiscoveredRoot { error: Some(error), ..DiscoveredRoot::empty(std::mem::take(&mut root.id), root.path.clone()) };
        }
    }
    Ok(DiscoverResponse { roots })
}

/// Looks at one root; whatever goes wrong is its own affair.
async fn look(connection: &Connection, root: DiscoverRoot) -> DiscoveredRoot {
    let DiscoverRoot { id, path, sandbox, known_digest } = root;
    let extended = known_digest.is_some();
    let looked = async {
        let (native, gate) = (native(&path)?, gate(connection, sandbox.as_ref())?);
        blocking(move || gate.discover(&native, extended)).await
    };
    let mut found = match looked.await {
        Ok(found) => DiscoveredRoot { id, path, ..found },
        Err(fault) => {
            let error = discovery::inspection_failed(&path, &fault.message);
            DiscoveredRoot { error: Some(error), ..DiscoveredRoot::empty(id, path) }
        }
    };
    if let Some(known) = known_digest {
        let digest = discovery::digest(&found);
        if digest == known {
            let DiscoveredRoot { id, path, .. } = found;
            found = DiscoveredRoot { unchanged: true, ..DiscoveredRoot::empty(id, path) };
        }
        found.digest = Some(digest);
    }
    found
}

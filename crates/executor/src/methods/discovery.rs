//! `capabilityRoots/discoverV1`, `capabilities/discoverV2` and `environmentConfig/read`.

use futures_util::{StreamExt, stream};
use outpost_rpc::{Lane, Router};
use outpost_wire::Fault;
use outpost_wire::exec::discovery::{
    Discover, DiscoverInstalled, DiscoverParams, DiscoverResponse, DiscoverRoot, DiscoveredRoot, InstalledParams, InstalledResponse,
    ReadConfig,
};

use crate::connection::ExecutorConnection;
use crate::discovery::{self, MAX_ROOTS};
use crate::methods::native::{blocking, gate, native};
use crate::{fault, installed, settings};

/// So many roots are looked at at the same time.
const AT_ONCE: usize = 8;
/// All roots of one answer may take so many bytes: it has to fit a message.
const MAX_ANSWER: usize = 24 << 20;

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    let admit = |connection: &ExecutorConnection| connection.admit("capability discovery");
    router
        .on::<Discover, _, _>(Lane::Ordinary, admit, |connection, params| async move { discover(&connection, params).await })
        .on::<DiscoverInstalled, _, _>(
            Lane::Ordinary,
            admit,
            |connection, params| async move { look_at_installed(&connection, params).await },
        )
        .on::<ReadConfig, _, _>(
            Lane::Ordinary,
            |connection| connection.admit("environment config"),
            |connection, params| async move {
                let config = connection.session()?.0.caller().config.clone();
                blocking(move || settings::read(&config, &params)).await
            },
        )
}

async fn discover(connection: &ExecutorConnection, params: DiscoverParams) -> Result<DiscoverResponse, Fault> {
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

async fn look_at_installed(connection: &ExecutorConnection, params: InstalledParams) -> Result<InstalledResponse, Fault> {
    let gate = gate(connection, params.sandbox.as_ref())?;
    let _turn = connection.bulk_turn().await;
    let config = connection.session()?.0.caller().config.clone();
    let extended = params.known_digest.is_some();
    let found = blocking(move || installed::look(&config, &gate, extended)).await?;
    let Some(known) = params.known_digest else { return Ok(found) };
    let digest = discovery::hex(&serde_json::to_vec(&found).unwrap_or_default());
    let unchanged = digest == known;
    let found = if unchanged { InstalledResponse::default() } else { found };
    Ok(InstalledResponse { digest: Some(digest), unchanged, ..found })
}

/// Looks at one root; whatever goes wrong is its own affair.
async fn look(connection: &ExecutorConnection, root: DiscoverRoot) -> DiscoveredRoot {
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

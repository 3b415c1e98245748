//! Threads where work may take its time, away from those that serve all connections.

use outpost_wire::Fault;

/// Does what blocks.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(Fault::internal)?
}

/// Does what is over at once as a rule, but not this time.
pub(crate) async fn aside<T: Send + 'static>(work: impl Future<Output = Result<T, Fault>> + Send + 'static) -> Result<T, Fault> {
    let runtime = tokio::runtime::Handle::current();
    blocking(move || runtime.block_on(work)).await
}

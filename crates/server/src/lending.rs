//! An executor that dialled in at one node is reached from every other: a node that needs it asks the one that has it for a link, and
//! hands the link in as if the executor had dialled in here.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use outpost_store::{NodeAddress, PostgresStore};
use outpost_wire::EnvironmentId;
use outpost_wire::SharedError;
use tokio::time::{sleep, timeout};

use crate::executors::Executors;
use crate::forward::DIAL;
use crate::people::ClientIdentity;
use crate::site::REACH;

/// The kind of the records that say which node has which executor; their keys are both, with a space between them.
const KIND: &str = "executor";
const LOOK: Duration = Duration::from_secs(1);

impl Executors {
    /// Says which executors are here, and borrows links to those that are elsewhere, for as long as this future is polled.
    pub async fn follow_nodes(&self, store: &PostgresStore, secret: &str) {
        let credential = ClientIdentity::default().credential(secret);
        loop {
            sleep(LOOK).await;
            if let Err(why) = self.exchange(store, &credential).await {
                tracing::debug!(%why, "executors of other nodes are not known now");
            }
        }
    }

    async fn exchange(&self, store: &PostgresStore, credential: &str) -> Result<(), SharedError> {
        let expected = self.expected();
        if expected.is_empty() {
            return Ok(());
        }
        let here: BTreeSet<EnvironmentId> = self.links().into_iter().filter(|(_, count)| *count > 0).map(|(id, _)| id).collect();
        let own = store.instance();
        let records = store.shared(KIND).await?;
        let known: Vec<(&str, &str)> = records.iter().filter_map(|record| record.key.split_once(' ')).collect();
        for id in here.iter().filter(|id| !known.contains(&(id.as_str(), own))) {
            store.put_shared(KIND, &format!("{id} {own}"), "").await?;
        }
        let nodes: HashMap<String, NodeAddress> = store.nodes().await?.into_iter().collect();
        let is_over = |id: &str, node: &str| {
            if node == own { !here.iter().any(|here| here.as_str() == id) } else { !nodes.contains_key(node) }
        };
        for (id, node) in known.iter().filter(|(id, node)| is_over(id, node)) {
            store.remove_shared(KIND, &format!("{id} {node}")).await?;
        }
        for id in expected.iter().filter(|id| !here.contains(*id)) {
            let Ok(door) = self.door(id) else { continue };
            let lenders = known.iter().filter(|(known, _)| *known == id.as_str()).filter_map(|(_, node)| nodes.get(*node)?.url.as_ref());
            for url in lenders {
                if door.waiting() > 0 {
                    break;
                }
                let address = format!("{}{REACH}{id}", url.trim_end_matches('/'));
                let dialling = outpost_environment::dial(&address, Some(credential.to_owned()));
                // A machine that is gone does not answer at all, and there are other nodes and executors to look at.
                let Ok(dialled) = timeout(DIAL, dialling).await else {
                    tracing::debug!(%id, url, "a node does not answer");
                    continue;
                };
                match dialled {
                    Ok(link) => {
                        link.gate.open();
                        if let Err(error) = door.hand_in(link) {
                            tracing::debug!(%id, %error, "a link that was borrowed is not needed");
                        }
                    }
                    Err(error) => tracing::debug!(%id, url, %error, "a node does not lend a link to its executor"),
                }
            }
        }
        Ok(())
    }
}

//! What a user granted beyond the sandbox: where, for how long, and what.

use outpost_wire::intent::EnvironmentId;
use serde::{Deserialize, Serialize};

use crate::id::{CallId, TurnId};
use crate::raw::Raw;

/// Work in one environment may do more from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionsGranted {
    pub turn: TurnId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    pub environment: EnvironmentId,
    /// The executor that answered behind the environment. Another one under the same id gets nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The handle, where the executor does not say who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    pub scope: GrantScope,
    /// Only the loop understands it.
    pub permissions: Raw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GrantScope {
    /// Until the turn ends.
    Turn,
    /// As long as the thread; not for threads that are forked from it.
    Thread,
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::{Entry, Fact, Marker, Thread, ThreadCreated, ThreadForked, ThreadId, TurnFinished, TurnStarted, TurnStatus};

    fn fold(facts: Vec<Fact>) -> Thread {
        let id = ThreadId::new(Uuid::from_u128(1));
        let mut thread = Thread::begin(&Entry { ordinal: 1, at: 1, fact: ThreadCreated::new(id).into() }).unwrap();
        for (ordinal, fact) in (2..).zip(facts) {
            thread.apply(&Entry { ordinal, at: ordinal, fact }).unwrap();
        }
        thread
    }

    fn granted(scope: GrantScope) -> Fact {
        let environment = EnvironmentId::local();
        let permissions = Raw::from(json!({"network": true}));
        PermissionsGranted { turn: "t".into(), call: None, environment, executor: None, generation: None, scope, permissions }.into()
    }

    fn begun() -> Fact {
        TurnStarted::new("t".into(), vec![]).into()
    }

    fn ended() -> Fact {
        let (turn, status) = (Some("t".into()), TurnStatus::Completed);
        TurnFinished { turn, status, reason: None, error: None, marker: Marker::Off }.into()
    }

    fn held(thread: &Thread) -> Vec<GrantScope> {
        thread.granted().map(|grant| grant.scope).collect()
    }

    #[test]
    fn a_turn_takes_its_grants_with_it() {
        let both = || vec![begun(), granted(GrantScope::Turn), granted(GrantScope::Thread)];
        assert_eq!(held(&fold(both())), [GrantScope::Thread, GrantScope::Turn]);
        let after = fold(both().into_iter().chain([ended()]).collect());
        assert_eq!(held(&after), [GrantScope::Thread]);
    }

    #[test]
    fn a_fork_has_none() {
        let id = |number| ThreadId::new(Uuid::from_u128(number));
        let fork = ThreadForked::new(id(2), id(1));
        assert_eq!(held(&fold(vec![begun(), granted(GrantScope::Thread), granted(GrantScope::Turn), fork.into()])), []);
    }

    #[test]
    fn a_grant_for_a_turn_that_is_over_is_none() {
        let mut thread = fold(vec![begun(), ended()]);
        let late = Entry { ordinal: thread.last + 1, at: 9, fact: granted(GrantScope::Turn) };
        assert!(thread.apply(&late).is_err());
        assert_eq!(held(&thread), []);
    }
}

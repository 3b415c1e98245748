//! What programs outside take away from the sandboxes of a thread's environments, told to those who watch the thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outpost_environment::StepView;
use outpost_wire::exec::policy::{Held, LossOutcome, SandboxLossParams};
use outpost_wire::intent::EnvironmentId;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::task::AbortOnDropHandle;

use crate::feed::ThreadFeed;
use crate::live::ThreadEvent;

/// For each environment: which of its handles is heard, and by which task.
#[derive(Default)]
pub(super) struct Hearings(BTreeMap<EnvironmentId, (u64, AbortOnDropHandle<()>)>);

impl Hearings {
    /// Hears the environments of a view from now on, and no others.
    pub(super) fn hear(&mut self, view: &StepView, feed: &Arc<ThreadFeed<ThreadEvent>>) {
        let places: BTreeMap<_, _> =
            view.workplaces().map(|place| (place.attachment.environment_id.clone(), place.handle.clone())).collect();
        self.0.retain(|id, (generation, _)| places.get(id).is_some_and(|handle| handle.generation() == *generation));
        for (id, handle) in places {
            self.0.entry(id.clone()).or_insert_with(|| {
                let task = tokio::spawn(tell(id, handle.losses(), feed.clone()));
                (handle.generation(), AbortOnDropHandle::new(task))
            });
        }
    }
}

async fn tell(environment: EnvironmentId, mut losses: Receiver<SandboxLossParams>, feed: Arc<ThreadFeed<ThreadEvent>>) {
    // An editor that saves every minute need not be told of every minute: it is held again each time.
    let mut restored = BTreeSet::new();
    loop {
        let message = match losses.recv().await {
            Ok(loss) if loss.outcome == LossOutcome::Restored && !restored.insert(loss.path.clone()) => continue,
            Ok(loss) => text(&environment, &loss),
            Err(RecvError::Lagged(count)) => format!("sandbox in `{environment}`: {count} more losses were not told one by one"),
            Err(RecvError::Closed) => return,
        };
        feed.publish(ThreadEvent::Warning { message }, 256);
    }
}

fn text(environment: &EnvironmentId, loss: &SandboxLossParams) -> String {
    let what = match loss.held {
        Held::Denied => "which is denied",
        Held::ReadOnly => "which is read-only",
        Held::Directory => "a directory on the way to something that is denied or read-only",
        Held::Link => "a link on the way to something that is denied or read-only",
        Held::Root => "in which the sandbox works",
    };
    let outcome = match loss.outcome {
        LossOutcome::Restored => "it is held again, and what commands that already ran did meanwhile was not",
        LossOutcome::Missing => "nothing is there now, and it is held again with the next command",
        LossOutcome::Open => "commands that already run are not held there any more; those that are started next are",
        LossOutcome::Made => "something is there again that a command that already ran could have made: look at it before you use it",
    };
    format!("sandbox in `{environment}`: a program outside replaced or removed {}, {what}; {outcome}", loss.path.to_syntax())
}

#[cfg(test)]
mod tests {
    use outpost_wire::PathUri;

    use super::*;

    #[test]
    fn a_loss_says_what_was_lost_and_what_came_of_it() {
        let path: PathUri = serde_json::from_value(serde_json::json!("file:///w/.env")).unwrap();
        let environment = "local".parse::<EnvironmentId>().unwrap();
        let said = |held, outcome| text(&environment, &SandboxLossParams { path: path.clone(), held, outcome });
        let denied = said(Held::Denied, LossOutcome::Restored);
        assert!(denied.contains("`local`") && denied.contains("/w/.env, which is denied") && denied.contains("held again"), "{denied}");
        let open = said(Held::Root, LossOutcome::Open);
        assert!(open.contains("not held there any more"), "{open}");
        let made = said(Held::ReadOnly, LossOutcome::Made);
        assert!(made.contains("could have made: look at it"), "{made}");
    }
}

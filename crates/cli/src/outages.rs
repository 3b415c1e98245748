//! What people are told while a connection is gone.

use std::time::Duration;

use outpost_environment::{Environment, State};

use crate::out::{aside, on_error_line};

/// A lost connection that is back sooner is not worth a word.
const NOTICEABLE: Duration = Duration::from_secs(2);

/// Says so when the connection is gone for longer than a moment, and when it is back. A terminal that passes every key on
/// needs other ends of lines.
pub async fn tell(environment: Environment, end: &'static str) {
    let begin = if end == "\n" { "" } else { end };
    let mut state = environment.watch();
    loop {
        let Ok(lost) = state.wait_for(|state| matches!(state, State::Recovering { .. })).await.map(|state| state.clone()) else { return };
        let back = state.wait_for(|state| !matches!(state, State::Recovering { .. }));
        if tokio::time::timeout(NOTICEABLE, back).await.is_ok() {
            continue;
        }
        if let State::Recovering { reason, .. } = lost {
            aside(&format!(
                "{begin}outpost: connection to {} lost ({}); trying to get it back{end}",
                environment.name(),
                on_error_line(&reason)
            ));
        }
        if state.wait_for(|state| matches!(state, State::Ready(_))).await.is_err() {
            return;
        }
        aside(&format!("{begin}outpost: connected again{end}"));
    }
}

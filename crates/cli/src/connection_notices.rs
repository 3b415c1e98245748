//! What people are told while a connection is gone.

use std::time::Duration;

use outpost_environment::{ConnectionState, Environment};

use crate::out::{aside, on_error_line};

/// A lost connection that is back sooner is not worth a word.
const NOTICEABLE: Duration = Duration::from_secs(2);

/// Says so when the connection is gone for longer than a moment, and when it is back. A terminal that passes every key on
/// needs other ends of lines.
pub(crate) async fn tell(environment: Environment, end: &'static str) {
    let begin = if end == "\n" { "" } else { end };
    let mut state = environment.watch();
    loop {
        if state.wait_for(|state| matches!(state, ConnectionState::Recovering { .. })).await.is_err() {
            return;
        }
        let back = state.wait_for(|state| !matches!(state, ConnectionState::Recovering { .. }));
        if tokio::time::timeout(NOTICEABLE, back).await.is_ok() {
            continue;
        }
        let name = environment.name();
        match environment.state() {
            ConnectionState::Recovering { reason, needs_login: true, .. } => {
                aside(&format!(
                    "{begin}outpost: connection to {name} lost ({}); type `outpost env login {name}` elsewhere{end}",
                    on_error_line(&reason)
                ));
            }
            ConnectionState::Recovering { reason, .. } => {
                aside(&format!("{begin}outpost: connection to {name} lost ({}); trying to get it back{end}", on_error_line(&reason)));
            }
            _ => {}
        }
        if state.wait_for(|state| matches!(state, ConnectionState::Ready(_))).await.is_err() {
            return;
        }
        aside(&format!("{begin}outpost: connected again{end}"));
    }
}

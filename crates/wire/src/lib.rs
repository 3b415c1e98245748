//! Every JSON shape that crosses a network, the names that secrets have, and how texts of others are shown.
//!
//! This room knows the envelope, the exec protocol, the app protocol, the faults, errors that are shared, and the intent that threads and environments have in common. It must not know tokio, files, or any other crate of
//! ours: a shape is data, what is done with it lives elsewhere.

pub mod app;
pub mod base64;
pub mod calendar;
pub mod denial_words;
pub mod encode;
pub mod envelope;
pub mod exec;
pub mod fault;
pub mod intent;
pub mod method;
pub mod packed;
pub mod path;
#[cfg(feature = "schema")]
pub mod schema;
pub mod secret_names;
pub mod shared_error;
pub mod shown;

pub use base64::Base64;
pub use encode::Encode;
pub use envelope::RequestId;
pub use fault::Fault;
pub use intent::{Attachment, CapabilityRoot, EnvironmentId, RootLocation, Selection};
pub use method::{Method, Notification};
pub use path::{Escaped, PathError, PathUri};
pub use shared_error::SharedError;

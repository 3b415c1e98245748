//! The thread as a pure value: facts go in, what to do next comes out.
//!
//! A thread is a list of [`Entry`]s, each a [`Fact`] in the past tense with an ordinal. [`Thread::apply`] folds one entry
//! into the state, [`Thread::next`] says what is to be done now, and every state has exactly one answer. Coming back after
//! a crash is folding and asking again, nothing else.
//!
//! The state does not hold the history. What the model sees is a fold of its own, [`Context`], which starts at
//! [`Thread::context_start`] and is made from the journal when a turn runs and dropped when the thread is idle. A
//! [`Checkpoint`] is the state at the end of a turn, so that folding need not start at the first entry; it may be thrown
//! away at any time.
//!
//! This room must not know files, time, randomness or tokio. Times and ids arrive inside of entries.

mod call;
mod call_view;
mod checkpoint;
mod compact;
mod context;
mod detail;
mod entry;
mod fork;
mod generated_image;
mod grant;
mod id;
mod inherit;
mod input;
mod pairs;
mod picture;
mod raw;
mod state;
mod step;
mod turn;
mod upcast;
mod usage;
mod wake;

pub use call::{Approval, ApprovalAnswered, ApprovalAsked, Decision};
pub use call::{Call, CallFinished, CallOutcome, CallRequest, CallStarted, CallState};
pub use call_view::{CallAction, CallEnding, CallView, EndedCallView, FileView};
pub use checkpoint::{Checkpoint, CheckpointError};
pub use compact::{CompactReason, ContextCompacted, Kept, TurnsReverted};
pub use context::{Context, is_user_message, marker, said};
pub use detail::{
    AgentDetail, ApprovalDetail, ApprovalKind, CallDetail, CallReport, ChangeKind, CommandDetail, CommandOrigin, DynamicDetail,
    FileChangeDetail, ImageDetail, InteractionDetail, JournalRecord, McpDetail, PlanDetail, PlannedChange, PlannedStep, PlannedStepStatus,
    Recorded, SkillDetail, WrittenFile,
};
pub use entry::{
    AgentClosed, AgentSpawned, DamageNoted, DamagedRange, Entry, Fact, FactError, MetadataChanged, ModelAnswered, ModelAsked,
    SelectionChanged, SettingsChanged, StepCaptured, StepEnvironment, TurnSettingsChanged,
};
pub use fork::{Cut, ForkBase, ForkError, ForkPoint, Outline, ThreadForked, closing};
pub use generated_image::GeneratedImage;
pub use grant::{GrantScope, PermissionsGranted};
pub use id::{ApprovalId, CallId, InputId, Ordinal, ThreadId, ThreadIdError, TurnId};
pub use inherit::{InheritedHistory, inherited};
pub use input::{InputOrigin, InputReceived, QueueChanged, QueuedInput};
pub use outpost_wire::intent::Selection;
pub use pairs::CALL_STOPPED;
pub use picture::{picture_kind, picture_size};
pub use raw::Raw;
pub use state::{Agent, FoldError, Keyed, Parent, Settings, Thread, ThreadCreated, ThreadMetadata};
pub use step::NextAction;
pub use turn::{InterruptReason, Marker, Turn, TurnFinished, TurnKind, TurnStarted, TurnStatus};
pub use upcast::{FORMAT, VERSION, upcast};
pub use usage::{ThreadUsage, TokenTotals, estimate};
pub use wake::{WAKE_KEY, WakeEnded, WakeSet};

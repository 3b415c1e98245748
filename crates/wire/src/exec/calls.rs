//! Ours: calls inside other messages, and answers that an executor follows. It watches what an answer depends on and says when that
//! changes, so that a client need not ask again as long as nothing is said.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::session::Empty;
use crate::fault::Fault;
use crate::{encode_with_serde, method, notification};

/// A call that is carried by another message.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CarriedCall {
    pub method: String,
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    pub params: Box<RawValue>,
    /// Asks for the answer to be followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow: Option<Follow>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Follow {
    /// Chosen by the client, another one each time.
    pub id: u64,
    /// The digest of the answer that the client knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_digest: Option<String>,
}

/// The answer to a carried call: a result, an error, or neither if it is the one that the client knows.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CarriedAnswer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub error: Option<Fault>,
    /// Of the result or the error; only for a call that is to be followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// It is what the client knows, and therefore left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
    #[serde(default, skip_serializing_if = "Following::is_not")]
    pub following: Following,
}

/// How far an answer can be relied on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Following {
    /// Nothing is told of changes.
    #[default]
    Not,
    /// It stands until `call/changed` names it.
    Followed,
    /// The same, but other machines can change it without a notice: what it depends on lies on a file system of others.
    Partly,
}

impl Following {
    fn is_not(&self) -> bool {
        *self == Self::Not
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FollowIds {
    pub ids: Vec<u64>,
}

encode_with_serde!(CarriedAnswer, FollowIds);

method!(
    /// Makes a call and follows its answer.
    CallFollow = "call/follow", CarriedCall => CarriedAnswer
);
method!(
    /// Ends the following of answers.
    CallUnfollow = "call/unfollow", FollowIds => Empty
);
method!(
    /// Answered when everything has been told that had changed when it came.
    CallSettle = "call/settle", Option<Empty> => Empty
);
notification!(
    /// What these answers depend on has changed; they are no longer followed.
    CallChanged = "call/changed", FollowIds
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_is_left_out() {
        let call: CarriedCall = serde_json::from_str(r#"{"method":"m","params":{"a":[1]}}"#).unwrap();
        assert_eq!((call.params.get(), call.follow.is_none()), (r#"{"a":[1]}"#, true));
        assert_eq!(serde_json::to_string(&CarriedAnswer::default()).unwrap(), "{}");
        let followed = CarriedAnswer { result: Some(call.params), following: Following::Partly, ..CarriedAnswer::default() };
        assert_eq!(serde_json::to_string(&followed).unwrap(), r#"{"result":{"a":[1]},"following":"partly"}"#);
    }
}

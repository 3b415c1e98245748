//! Answers that leave the work where it is: with neither words nor calls, with a promise or a call in words only, or cut off at the limit.
//! The model is asked to go on, once until it makes a call. An answer that is no better after that ends the turn as failed.

use outpost_thread::{GeneratedImage, Raw, is_user_message, said};

use super::call_item::CallItem;
use crate::model::StopReason;

/// What an answer without calls lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lack {
    Empty,
    Promise,
    Truncated,
    TextCall,
    UnreadableCall,
}

const TAG: &str = "<continue_request>";

impl Lack {
    /// What an answer lacks that holds these items and no call, after what the model was asked for before it.
    pub(super) fn of(items: &[Raw], stop: StopReason, asked: Option<&Asked>) -> Option<Self> {
        let text: String = items.iter().filter_map(said).collect();
        match stop {
            StopReason::Truncated => Some(Self::Truncated),
            StopReason::TextCall => Some(Self::TextCall),
            StopReason::UnreadableCall => Some(Self::UnreadableCall),
            _ if items.iter().filter_map(GeneratedImage::of).any(|image| image.data().is_some()) => None,
            _ if text.trim().is_empty() => Some(Self::Empty),
            // Neither a call nor the words that were asked for in its place: small models give the request back in the form of a call.
            _ if asked.is_some_and(Asked::is_to_mend_a_call) && is_named_object(&text) => Some(Self::UnreadableCall),
            _ => is_promise(&text).then_some(Self::Promise),
        }
    }

    /// What the model is asked.
    pub(super) fn message(self) -> String {
        let why = match self {
            Self::Empty => "Your last answer was empty. Go on with the task: call a tool, or give your final answer in words.",
            Self::Promise => {
                "Your last answer says what you will do next, but it holds no tool call, so nothing was done. Make the call now. If \
                 nothing is left to do, give your final answer."
            }
            Self::Truncated => "Your last answer reached the limit of its length and was cut off. Go on where it ended, in smaller steps.",
            Self::TextCall => {
                "Your last answer holds a tool call as text. It was not run: only calls that are made as calls are. Make the call in that way \
                 now. If nothing is left to do, give your final answer in words."
            }
            Self::UnreadableCall => {
                "Your last answer looks like a tool call but cannot be read as one, so nothing was done. A call is one JSON object: \"name\" is \
                 the exact name of a tool, \"arguments\" an object as the tool describes it. Make the call now. If nothing is left to do, \
                 or it was only to be shown, give your final answer, and end it with words."
            }
        };
        format!("{TAG}\n{why}\n</continue_request>")
    }

    /// How the turn ends if the model was asked already: in one word, and for people.
    pub(super) fn failure(self) -> (&'static str, &'static str) {
        match self {
            Self::Empty => ("emptyAnswer", "the model answered twice with neither text nor a tool call; the turn was ended"),
            Self::Truncated => ("truncatedAnswer", "the model's answer was cut off twice at the limit of its length; the turn was ended"),
            Self::Promise => {
                ("brokenPromise", "the model said what it would do next and made no tool call, also when asked to; the turn was ended")
            }
            Self::TextCall => (
                "textCall",
                "the model wrote its calls as text, and nothing was done; `quirks = [\"text_calls\"]` in the entry of its provider takes them",
            ),
            Self::UnreadableCall => {
                ("unreadableCall", "the model wrote calls as text that cannot be read, also when asked to mend them; the turn was ended")
            }
        }
    }
}

/// A request to go on.
pub(super) struct Asked(String);

impl Asked {
    fn is_to_mend_a_call(&self) -> bool {
        [Lack::UnreadableCall, Lack::TextCall].iter().any(|lack| lack.message() == self.0)
    }
}

/// What the model was asked for since the user said something or a call was answered: a call is what was asked for.
pub(super) fn asked(items: &[Raw]) -> Option<Asked> {
    let is_older = |item: &Raw| is_user_message(item) || item.read::<CallItem>().is_ok_and(|item| item.kind.ends_with("_call_output"));
    let mut texts = items.iter().rev().take_while(|item| !is_older(item)).filter_map(said);
    texts.find(|text| text.starts_with(TAG)).map(Asked)
}

/// Whether a text is an object of JSON with a name, in a fence or without, and nothing else.
fn is_named_object(text: &str) -> bool {
    let text = text.trim();
    let fenced = text.strip_prefix("```json").or_else(|| text.strip_prefix("```")).and_then(|rest| rest.strip_suffix("```"));
    let object: Option<serde_json::Value> = serde_json::from_str(fenced.unwrap_or(text)).ok();
    object.is_some_and(|object| object["name"].is_string())
}

/// Whether a text ends with the announcement of a next action.
fn is_promise(text: &str) -> bool {
    const BEGINNINGS: [&str; 12] = [
        "i'll ",
        "i will ",
        "let me ",
        "let's ",
        "now i'll ",
        "now i will ",
        "now let me ",
        "next, i'll ",
        "next, i will ",
        "first, i'll ",
        "i'm going to ",
        "i am going to ",
    ];
    // What waits for the user, or only sounds like a plan.
    const OTHERS: [&str; 7] = ["let me know", "wait", "be happy", "be glad", "need you", "once you", "if you"];
    const PAUSES: [&str; 4] = ["please wait", "please wait a moment", "one moment", "one moment, please"];
    const STOPS: [char; 5] = ['.', '!', ':', '…', ' '];
    let text = text.trim().replace('’', "'").to_lowercase();
    let Some(last) = text.lines().rev().find(|line| !line.trim().is_empty()) else { return false };
    if last.ends_with('?') {
        return false;
    }
    let end = last.trim_end_matches(STOPS);
    let end = PAUSES.iter().find_map(|pause| end.strip_suffix(pause)).unwrap_or(end).trim_end_matches(STOPS);
    let sentence = end.rsplit_once(['.', '!']).map_or(end, |(_, sentence)| sentence).trim_start();
    let sentence = sentence.strip_prefix("now, ").or_else(|| sentence.strip_prefix("okay, ")).unwrap_or(sentence);
    BEGINNINGS.iter().any(|beginning| sentence.starts_with(beginning)) && !OTHERS.iter().any(|other| sentence.contains(other))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(text: &str) -> Raw {
        Raw::from(json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}))
    }

    fn user(text: &str) -> Raw {
        Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
    }

    #[test]
    fn promises_are_told_from_answers() {
        for text in [
            "I'll list the files first.",
            "The test fails.\n\nLet me look at the source:",
            "Okay. Now I will run the tests.",
            "I’m going to create the file…",
            "I understand the task. Let me apply the patch to the file. Please wait.",
        ] {
            assert!(is_promise(text), "{text}");
        }
        for text in [
            "Done: I'll not touch anything else. The file is there.",
            "Let me know if you want more.",
            "I'll wait for your answer.",
            "It is running. Please wait.",
            "Shall I go on?",
            "I will run it if you agree.",
            "The word `let me` is in line 3.",
            "hello",
            "",
        ] {
            assert!(!is_promise(text), "{text}");
        }
    }

    #[test]
    fn what_an_answer_lacks() {
        let of = |items: &[Raw], stop| Lack::of(items, stop, None);
        assert_eq!(of(&[], StopReason::Complete), Some(Lack::Empty));
        assert_eq!(of(&[answer(" \n")], StopReason::Complete), Some(Lack::Empty));
        assert_eq!(of(&[answer("done")], StopReason::Complete), None);
        assert_eq!(of(&[Raw::from(GeneratedImage::item("QUJD"))], StopReason::Complete), None);
        assert_eq!(of(&[answer("so f")], StopReason::Truncated), Some(Lack::Truncated));
        assert_eq!(of(&[answer("{…}")], StopReason::TextCall), Some(Lack::TextCall));
    }

    #[test]
    fn json_alone_is_no_answer_to_the_request_to_mend_a_call() {
        let after = |lack: Option<Lack>, text: &str| {
            let asked = lack.map(|lack| Asked(lack.message()));
            Lack::of(&[answer(text)], StopReason::Complete, asked.as_ref())
        };
        for text in ["```json\n{\"name\": \"continue_request\"}\n```", "{\"name\": \"done\"}"] {
            assert_eq!(after(Some(Lack::UnreadableCall), text), Some(Lack::UnreadableCall));
            assert_eq!(after(Some(Lack::TextCall), text), Some(Lack::UnreadableCall));
            assert_eq!((after(Some(Lack::Empty), text), after(None, text)), (None, None), "the user may have asked for it");
        }
        assert_eq!(after(Some(Lack::UnreadableCall), "It is {\"name\": \"x\"}."), None);
    }

    #[test]
    fn it_is_asked_once_until_the_user_speaks_or_it_calls() {
        let request = user(&Lack::Empty.message());
        let is_asked = |items: &[Raw]| asked(items).is_some();
        assert!(!is_asked(&[user("go")]));
        assert!(is_asked(&[user("go"), request.clone(), answer("x")]));
        assert!(!is_asked(&[user("go"), request.clone(), user("again")]));
        let result = Raw::from(json!({"type": "function_call_output", "call_id": "a", "output": "x"}));
        assert!(!is_asked(&[user("go"), request, result, answer("x")]));
    }
}

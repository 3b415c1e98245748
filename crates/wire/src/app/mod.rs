//! The app protocol: what clients of threads say and hear.
//!
//! Shapes are written with every optional member present, as `null` or `[]`, because some clients refuse a message without
//! them; they are read leniently, and members that are not known are ignored. Ids, paths and URLs are plain texts here:
//! the code that uses them checks them, so that a refusal can be worded as clients expect it.

/// Declares shapes that all look alike; members behind a semicolon may be left out.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$note:meta])* $member:ident: $shape:ty),* $(; $($(#[$more:meta])* $optional:ident: $other:ty),+)? $(,)?
    })+) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name {
            $($(#[$note])* pub $member: $shape,)*
            $($($(#[$more])* #[serde(default)] pub $optional: $other,)+)?
        })+
    };
}

pub mod account;
pub mod approval;
pub mod commands;
pub mod config;
pub mod environment;
pub mod event;
pub mod files;
pub mod goals;
pub mod item;
pub mod journal;
pub mod lists;
pub mod mcp;
pub mod methods;
pub mod models;
pub mod overview;
pub mod permission;
pub mod queue;
pub mod review;
pub mod sample;
pub mod search;
pub mod session;
pub mod settings;
pub mod skills;
pub mod thread;
pub mod turn;
pub mod unread;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Method;

/// A method of the app protocol: which of it is only for clients that asked for what is not settled yet.
pub trait AppMethod: Method {
    /// The whole method is.
    const EXPERIMENTAL: bool;
    /// These members of its parameters are.
    const EXPERIMENTAL_MEMBERS: &'static [&'static str];
    /// Whether `params` may be left out.
    const BARE: bool;
}

/// Declares an [`AppMethod`]:
/// `app_method!(Read = "thread/read", ReadParams => ReadResponse);`, with `, experimental` for a method that is as a whole,
/// `, experimental ["a", "b"]` for members that are, and `, bare` for one without parameters.
#[macro_export]
macro_rules! app_method {
    ($(#[$doc:meta])* $name:ident = $wire:literal, $params:ty => $output:ty) => {
        $crate::app_method!(@ $(#[$doc])* $name = $wire, $params => $output, false, [], false);
    };
    ($(#[$doc:meta])* $name:ident = $wire:literal, $params:ty => $output:ty, experimental) => {
        $crate::app_method!(@ $(#[$doc])* $name = $wire, $params => $output, true, [], false);
    };
    ($(#[$doc:meta])* $name:ident = $wire:literal, $params:ty => $output:ty, experimental [$($member:literal),+ $(,)?]) => {
        $crate::app_method!(@ $(#[$doc])* $name = $wire, $params => $output, false, [$($member),+], false);
    };
    ($(#[$doc:meta])* $name:ident = $wire:literal, $params:ty => $output:ty, bare) => {
        $crate::app_method!(@ $(#[$doc])* $name = $wire, $params => $output, false, [], true);
    };
    (@ $(#[$doc:meta])* $name:ident = $wire:literal, $params:ty => $output:ty, $whole:literal, [$($member:literal),*], $bare:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;
        // Outputs are only written by our program; tests read them where they stand.
        impl $crate::Method for $name {
            const NAME: &'static str = $wire;
            type Params = $params;
            type Output = $output;

            fn read_params(text: &[u8]) -> Result<$params, ::serde_json::Error> {
                ::serde_json::from_slice(text)
            }
        }
        impl $crate::app::AppMethod for $name {
            const EXPERIMENTAL: bool = $whole;
            const EXPERIMENTAL_MEMBERS: &'static [&'static str] = &[$($member),*];
            const BARE: bool = $bare;
        }
    };
}

/// `{}`: there is nothing to say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Nothing {}

/// The parameters of a method that has none: whatever is sent is ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoParams {}

impl<'de> Deserialize<'de> for NoParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

/// Only a thread is named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadParams {
    pub thread_id: String,
}

/// In which order a page is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SortDirection {
    Asc,
    Desc,
}

crate::encode_with_serde!(Nothing);

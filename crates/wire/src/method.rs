//! A method is a type, so a handler cannot be registered under the wrong name or with the wrong shapes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encode::Encode;

/// A request that is answered: its name and both of its shapes.
pub trait Method {
    const NAME: &'static str;
    type Params: Serialize + DeserializeOwned + Send + 'static;
    type Output: Encode + DeserializeOwned + Send + 'static;

    /// Reads its parameters. The macros write this out for each method, so that a shape is compiled here once and not in every crate
    /// that reads it.
    fn read_params(text: &[u8]) -> Result<Self::Params, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// The same for its output.
    fn read_output(text: &[u8]) -> Result<Self::Output, serde_json::Error> {
        serde_json::from_slice(text)
    }
}

/// A message that is not answered.
pub trait Notification {
    const NAME: &'static str;
    type Params: Encode + DeserializeOwned + Send + 'static;
}

/// Declares a [`Method`]: `method!(Start = "process/start", StartParams => StartResponse);`
#[macro_export]
macro_rules! method {
    ($(#[$doc:meta])* $name:ident = $wire:literal, $params:ty => $output:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;
        impl $crate::Method for $name {
            const NAME: &'static str = $wire;
            type Params = $params;
            type Output = $output;

            fn read_params(text: &[u8]) -> Result<$params, ::serde_json::Error> {
                ::serde_json::from_slice(text)
            }

            fn read_output(text: &[u8]) -> Result<$output, ::serde_json::Error> {
                ::serde_json::from_slice(text)
            }
        }
    };
}

/// Declares a [`Notification`]: `notification!(Closed = "process/closed", ClosedParams);`
#[macro_export]
macro_rules! notification {
    ($(#[$doc:meta])* $name:ident = $wire:literal, $params:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;
        impl $crate::Notification for $name {
            const NAME: &'static str = $wire;
            type Params = $params;
        }
    };
}

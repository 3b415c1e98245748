//! A method is a type, so a handler cannot be registered under the wrong name or with the wrong shapes.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encode::Encode;

/// A request that is answered: its name and both of its shapes.
pub trait Method {
    const NAME: &'static str;
    type Params: Serialize + DeserializeOwned + Send + 'static;
    type Output: Encode + DeserializeOwned + Send + 'static;
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

//! JSON Schema of both protocols, made from the shapes themselves.
//!
//! Only with the feature `schema`: the program carries the text that was made, not what makes it.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::app::{self, AppMethod};
use crate::base64::{Base64, Unchecked};
use crate::exec::environment::Unit;
use crate::exec::process::{OutputParams, OutputPiece, Stream};
use crate::exec::{
    adoption, attributes, calls, discovery, environment, files, http, packs, policy, process, session, streams, walk, watch,
};
use crate::path::{Escaped, PathUri};
use crate::{Method, Notification};

/// Declares how a shape that writes itself is described.
macro_rules! described {
    ($($shape:ty = $name:literal: $schema:tt),+ $(,)?) => {
        $(impl JsonSchema for $shape {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        })+
    };
}

described! {
    PathUri = "PathUri": {"type": "string", "format": "uri", "description": "A path as a `file://` URI."},
    Escaped = "Escaped": {"type": "string", "description": "Bytes that are no whole path, percent-encoded."},
    Base64 = "Base64": {"type": "string", "contentEncoding": "base64", "description": "Standard base64 with padding."},
    Unchecked = "Base64Data": {"type": "string", "contentEncoding": "base64", "description": "Standard base64 with padding."},
    Unit = "Unit": {"description": "Nothing: `null`, left out, or `{}`."},
}

/// A piece of output or a gap, with the members of what it stands in.
fn piece(generator: &mut SchemaGenerator, with_process: bool) -> Schema {
    let stream = generator.subschema_for::<Stream>();
    let chunk = generator.subschema_for::<Base64>();
    let (mut common, mut required) = (json!({"seq": {"type": "integer", "minimum": 0}}), vec!["seq"]);
    if with_process {
        common["processId"] = json!({"type": "string"});
        required.push("processId");
    }
    json_schema!({
        "type": "object",
        "properties": common,
        "required": required,
        "oneOf": [
            {"properties": {"stream": stream, "chunk": chunk}, "required": ["stream", "chunk"]},
            {
                "description": "Ours: output that is lost; `seq` is the last number that it covers.",
                "properties": {"gapBytes": {"type": "integer", "minimum": 0}},
                "required": ["gapBytes"],
            },
        ],
    })
}

impl JsonSchema for OutputPiece {
    fn schema_name() -> Cow<'static, str> {
        "OutputPiece".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        piece(generator, false)
    }
}

impl JsonSchema for OutputParams {
    fn schema_name() -> Cow<'static, str> {
        "OutputParams".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        piece(generator, true)
    }
}

/// A protocol as it is put together.
pub(crate) struct Book {
    generator: SchemaGenerator,
    methods: Map<String, Value>,
    requests: Map<String, Value>,
    notifications: Map<String, Value>,
}

impl Book {
    fn new() -> Self {
        Self {
            generator: SchemaSettings::draft2020_12().into_generator(),
            methods: Map::new(),
            requests: Map::new(),
            notifications: Map::new(),
        }
    }

    fn shape<T: JsonSchema>(&mut self) -> Value {
        self.generator.subschema_for::<T>().into()
    }

    fn both<M: Method<Params: JsonSchema, Output: JsonSchema>>(&mut self) -> Value {
        json!({"params": self.shape::<M::Params>(), "result": self.shape::<M::Output>()})
    }

    fn method<M: Method<Params: JsonSchema, Output: JsonSchema>>(&mut self) {
        let both = self.both::<M>();
        self.methods.insert(M::NAME.into(), both);
    }

    pub(crate) fn app<M: AppMethod<Params: JsonSchema, Output: JsonSchema>>(&mut self) {
        let mut both = self.both::<M>();
        both["experimental"] = M::EXPERIMENTAL.into();
        both["experimentalMembers"] = M::EXPERIMENTAL_MEMBERS.into();
        both["paramsMayBeLeftOut"] = M::BARE.into();
        self.methods.insert(M::NAME.into(), both);
    }

    fn request<M: Method<Params: JsonSchema, Output: JsonSchema>>(&mut self) {
        let both = self.both::<M>();
        self.requests.insert(M::NAME.into(), both);
    }

    fn notification<N: Notification<Params: JsonSchema>>(&mut self) {
        let params = self.shape::<N::Params>();
        self.notifications.insert(N::NAME.into(), json!({"params": params}));
    }

    fn text(mut self, title: &str, description: &str) -> String {
        let mut all = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": title,
            "description": description,
            "methods": self.methods,
            "notifications": self.notifications,
            "$defs": self.generator.take_definitions(true),
        });
        if !self.requests.is_empty() {
            all["serverRequests"] = Value::Object(self.requests);
        }
        let mut text = serde_json::to_string_pretty(&all).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Enters each method of a list.
macro_rules! enter {
    ($book:ident.$kind:ident: $($room:ident::{ $($name:ident),+ $(,)? }),+ $(,)?) => {
        $($($book.$kind::<$room::$name>();)+)+
    };
}

/// The app protocol.
pub fn app() -> String {
    use app::{approval, permission};
    let mut book = Book::new();
    book.app_methods();
    enter!(book.request:
        approval::{CommandApproval, FileChangeApproval, ToolCall, UserInputRequest, McpElicitation},
        permission::{PermissionsApproval},
    );
    for (name, params) in app::event::Notice::schemas(&mut book.generator) {
        let params = json!({"params": Value::from(params), "emittedAtMs": {"type": "integer"}});
        book.notifications.insert(name.into(), params);
    }
    book.text(
        "The app protocol of Outpost",
        "What clients of threads say (methods), are asked (serverRequests) and hear (notifications). `initialized` is the only \
         notification that a client sends. Whatever is experimental needs `capabilities.experimentalApi` in `initialize`.",
    )
}

/// The exec protocol.
pub fn exec() -> String {
    let mut book = Book::new();
    enter!(book.method:
        session::{Initialize, SessionEnd},
        environment::{Info, Status},
        process::{Start, Read, Write, SendSignal, Terminate, Resize, CloseStdin, List},
        adoption::{Adopt},
        files::{ReadFile, WriteFile, CreateDirectory, GetMetadata, Canonicalize, ReadDirectory, Remove, Copy, Rename},
        walk::{Walk},
        watch::{WatchMissing, Watch, Unwatch},
        streams::{Open, ReadBlock, WriteBlock, Close},
        packs::{ReadPack, WritePack, Sync},
        attributes::{GetAttributes, ListAttributes, SetMode, CreateLink},
        http::{HttpRequest},
        discovery::{Discover, DiscoverInstalled, ReadConfig},
        calls::{CallFollow, CallUnfollow, CallSettle},
    );
    enter!(book.notification: process::{Output, Exited, Closed}, adoption::{Moved}, policy::{SandboxLoss}, watch::{MissingChanged, Changed}, http::{BodyDelta}, calls::{CallChanged});
    book.text(
        "The exec protocol of Outpost",
        "What an executor is asked (methods) and tells (notifications). `initialized` is the only notification that a client sends.",
    )
}

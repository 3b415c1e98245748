use serde_json::json;

use super::*;

fn read(value: Value) -> Result<ServerDeclaration, DeclarationError> {
    declaration("s", &value, &DeclarationOrigin::Config, &McpLimits::default())
}

fn place() -> (EnvironmentId, PathUri) {
    (EnvironmentId::parse("box").unwrap(), PathUri::from_syntax("/srv/plugin").unwrap())
}

fn plugin(value: Value) -> Result<ServerDeclaration, DeclarationError> {
    let (environment, directory) = place();
    declaration("s", &value, &DeclarationOrigin::Plugin { root: "r".into(), environment, directory }, &McpLimits::default())
}

fn project(value: Value) -> Result<ServerDeclaration, DeclarationError> {
    let (environment, directory) = place();
    declaration("s", &value, &DeclarationOrigin::Project { environment, directory }, &McpLimits::default())
}

#[test]
fn a_program_with_everything() {
    let server = read(json!({
        "command": "node", "args": ["x.js"], "env": {"A": "1"}, "env_vars": ["TOKEN", {"name": "B", "source": "remote"}], "cwd": "/srv",
        "environment_id": "box", "startup_timeout_sec": 2.5, "tool_timeout_sec": 60, "enabled_tools": ["a"], "disabled_tools": ["b"],
        "required": true, "enabled": false,
    }))
    .unwrap();
    assert_eq!(server.environment.as_str(), "box");
    assert_eq!((server.startup_timeout, server.tool_timeout), (Duration::from_millis(2500), Duration::from_secs(60)));
    assert!(server.required && !server.enabled);
    let McpTransport::Stdio(stdio) = server.transport else { panic!() };
    assert_eq!(stdio.env_vars, ["TOKEN", "B"]);
    assert_eq!(stdio.cwd, Cwd::Fixed(PathUri::from_syntax("/srv").unwrap()));
}

#[test]
fn little_is_needed() {
    let server = read(json!({"command": "x"})).unwrap();
    assert!(server.environment.is_local() && server.enabled && !server.required);
    assert_eq!(server.startup_timeout, Duration::from_secs(30));
    let McpTransport::Stdio(stdio) = server.transport else { panic!() };
    assert_eq!(stdio.cwd, Cwd::Thread(None));
    assert!(read(json!({"url": "http://127.0.0.1:80/mcp", "bearer_token_env_var": "T", "type": "http"})).is_ok());
}

#[test]
fn what_is_wrong_is_said() {
    let cases = [
        (json!({}), "either `command`"),
        (json!(3), "mcp_servers.s"),
        (json!({"command": "a", "url": "http://x"}), "exclude each other"),
        (json!({"command": "a", "bearer_token_env_var": "T"}), "bearer_token_env_var"),
        (json!({"command": "a", "headers": {"x": "y"}}), "http_headers"),
        (json!({"url": "http://x", "args": ["y"]}), "`args`"),
        (json!({"url": "ftp://x"}), "not an http or https address"),
        (json!({"url": "http://"}), "not an http or https address"),
        (json!({"url": "http://x", "type": "sse"}), "`sse` is not spoken"),
        (json!({"url": "http://x", "http_headers": {"Mcp-Session-Id": "1"}}), "belongs to the protocol"),
        (json!({"url": "http://x", "http_headers": {"a b": "1"}}), "not a header name"),
        (json!({"command": "  "}), "empty"),
        (json!({"command": ["a"]}), "string"),
        (json!({"command": "a", "startup_timeout_sec": 0}), "startup_timeout_sec"),
        (json!({"command": "a", "tool_timeout_sec": -1}), "tool_timeout_sec"),
        (json!({"command": "a", "environment_id": "a b"}), "environment_id"),
        (json!({"command": "a", "cwd": "~/x"}), "absolute"),
        (json!({"command": "a", "env_vars": ["A=B"]}), "not a variable name"),
        (json!({"command": "a", "env_vars": [{"name": "A", "source": "local"}]}), "where the server runs"),
    ];
    for (value, expected) in cases {
        let error = read(value.clone()).unwrap_err().to_string();
        assert!(error.contains(expected), "{value}: {error}");
    }
    assert!(declaration("a b", &json!({"command": "x"}), &DeclarationOrigin::Config, &McpLimits::default()).is_err());
}

#[test]
fn a_plugin_stays_where_it_lies() {
    let cwd = |value: Value| match plugin(value).unwrap().transport {
        McpTransport::Stdio(stdio) => stdio.cwd,
        McpTransport::Http(_) => panic!(),
    };
    assert_eq!(cwd(json!({"command": "x"})), Cwd::Fixed(PathUri::from_syntax("/srv/plugin").unwrap()));
    assert_eq!(cwd(json!({"command": "x", "cwd": "sub"})), Cwd::Fixed(PathUri::from_syntax("/srv/plugin/sub").unwrap()));
    for outside in ["..", "sub/../..", "/etc", "/srv/plugin-two"] {
        assert!(matches!(plugin(json!({"command": "x", "cwd": outside})), Err(DeclarationError::Outside { .. })), "{outside}");
    }
    let server = plugin(json!({"command": "${CLAUDE_PLUGIN_ROOT}/run", "env_vars": ["T"]})).unwrap();
    assert_eq!(server.environment.as_str(), "box");
    assert!(matches!(server.transport, McpTransport::Stdio(stdio) if stdio.command == "/srv/plugin/run"));
    for wrong in [
        json!({"command": "x", "environment_id": "local"}),
        json!({"command": "x", "required": true}),
        json!({"command": "x", "args": ["${HOME}"]}),
        json!({"command": "x", "env_vars": [{"name": "T", "source": "local"}]}),
        json!({"url": "http://x", "env_http_headers": {"x": "T"}}),
    ] {
        assert!(plugin(wrong.clone()).is_err(), "{wrong}");
    }
    assert!(plugin(json!({"url": "http://x", "bearer_token_env_var": "T"})).is_ok());
}

#[test]
fn a_project_gives_nothing_of_the_machine_away() {
    assert!(project(json!({"command": "x", "env": {"A": "b"}})).is_ok());
    assert!(project(json!({"command": "x", "env_vars": ["SECRET"]})).is_err());
    assert!(project(json!({"url": "http://x", "bearer_token_env_var": "T"})).is_err());
}

#[test]
fn one_that_is_wrong_spoils_no_other() {
    let object = json!({"mcpServers": {"good": {"command": "x"}, "bad": {"command": 3}}});
    let all = declarations(object.as_object().unwrap(), &DeclarationOrigin::Config, &McpLimits::default());
    assert!(all["good"].is_ok() && all["bad"].is_err());
    let bare = json!({"good": {"command": "x"}});
    assert_eq!(declarations(bare.as_object().unwrap(), &DeclarationOrigin::Config, &McpLimits::default()).len(), 1);
}

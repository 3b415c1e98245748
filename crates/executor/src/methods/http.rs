//! `http/request`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use outpost_rpc::{HandlerOutcome, Lane, RequestContext, Router};
use outpost_sandbox::policy::NetworkRule;
use outpost_wire::envelope::TraceContext;
use outpost_wire::exec::http::{HttpRequest, HttpRequestParams, HttpRequestResponse, RequestHeader, ResponseHeader};
use outpost_wire::{Base64, Fault};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, Url};

use crate::connection::ExecutorConnection;
use crate::http::{self, Exchange};
use crate::{fault, variables};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

pub(super) fn routes(router: Router<ExecutorConnection>) -> Router<ExecutorConnection> {
    router.on_call::<HttpRequest, _, _>(
        Lane::Ordinary,
        |connection| connection.admit("http"),
        |connection, call| async move { request(&connection, call).await },
    )
}

async fn request(
    connection: &ExecutorConnection,
    call: RequestContext<HttpRequestParams>,
) -> Result<HandlerOutcome<HttpRequestResponse>, Fault> {
    let RequestContext { params, trace } = call;
    if connection.executor().config.grounds.ceiling.rules().is_some_and(|rules| rules.network == NetworkRule::Restricted) {
        return Err(fault::http_above_ceiling());
    }
    let (request_id, is_streamed) = (params.request_id.clone(), params.stream_response);
    let caller = connection.session()?.0.caller();
    let mut exchange = exchange(params, &caller.config.variables)?;
    if let Some(trace) = &trace {
        add_trace(&mut exchange.headers, trace);
    }
    let clients = &caller.http;
    if !is_streamed {
        let response = clients.send(exchange).await?;
        let head = head(&response);
        // The body, not the wait for it, is what takes memory; how long that is is the client's own time limit.
        let _turn = connection.bulk_turn().await;
        return Ok(HttpRequestResponse { body_base64: http::read_body(response).await?.into(), ..head }.into());
    }
    let stream = connection.bodies().claim(&request_id, connection.peer())?;
    let response = clients.send(exchange).await?;
    Ok(HandlerOutcome { output: head(&response), rest: Some(Box::pin(stream.push(response))) })
}

fn exchange(params: HttpRequestParams, own: &BTreeMap<OsString, OsString>) -> Result<Exchange, Fault> {
    let method = Method::from_bytes(params.method.as_bytes()).map_err(|error| fault::http_argument("method is invalid", &error))?;
    let mut url = Url::parse(&params.url).map_err(|error| fault::http_argument("url is invalid", &error))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(fault::http_scheme(url.scheme()));
    }
    url.set_fragment(None);
    let mut headers = HeaderMap::new();
    for asked in &params.headers {
        let name = HeaderName::from_bytes(asked.name.as_bytes()).map_err(|error| fault::http_argument("header name is invalid", &error))?;
        headers.append(name, header_value(asked, own)?);
    }
    Ok(Exchange {
        method,
        url,
        headers,
        body: params.body_base64.map(|body| body.0),
        timeout: params.timeout_ms.map(Duration::from_millis),
        redirects: params.redirect_policy,
    })
}

/// The value as it is given, with a variable of this executor behind it if one is named.
fn header_value(asked: &RequestHeader, own: &BTreeMap<OsString, OsString>) -> Result<HeaderValue, Fault> {
    let mut value = asked.value.clone().into_bytes();
    if let Some(variable) = &asked.value_env_var {
        if variables::is_guarded(variable) {
            return Err(fault::header_variable_guarded(&asked.name, variable));
        }
        let set = own.get(OsStr::new(variable)).filter(|value| !value.is_empty());
        let set = set.ok_or_else(|| fault::header_variable_missing(&asked.name, variable))?;
        value.extend_from_slice(set.as_bytes());
    }
    let mut value = HeaderValue::from_bytes(&value)
        .map_err(|error| fault::http_argument(&format!("header value is invalid for {}", asked.name), &error))?;
    value.set_sensitive(asked.value_env_var.is_some());
    Ok(value)
}

/// Passes the caller's trace on, unless the request has one of its own.
fn add_trace(headers: &mut HeaderMap, trace: &TraceContext) {
    let Some(parent) = trace.parent().and_then(|parent| HeaderValue::from_str(parent).ok()) else { return };
    if headers.contains_key(TRACEPARENT) || headers.contains_key(TRACESTATE) {
        return;
    }
    headers.insert(TRACEPARENT, parent);
    if let Some(state) = trace.tracestate.as_deref().and_then(|state| HeaderValue::from_str(state).ok()) {
        headers.insert(TRACESTATE, state);
    }
}

/// Status and headers. Values that are not text have no place in JSON.
fn head(response: &Response) -> HttpRequestResponse {
    let headers = response.headers().iter();
    let headers =
        headers.filter_map(|(name, value)| Some(ResponseHeader { name: name.as_str().to_owned(), value: value.to_str().ok()?.to_owned() }));
    HttpRequestResponse { status: response.status().as_u16(), headers: headers.collect(), body_base64: Base64::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(headers: &[(&str, &str, Option<&str>)]) -> HttpRequestParams {
        let header = |(name, value, variable): &(&str, &str, Option<&str>)| RequestHeader {
            name: (*name).into(),
            value: (*value).into(),
            value_env_var: variable.map(Into::into),
        };
        HttpRequestParams {
            method: "GET".into(),
            url: "http://h/p?q#f".into(),
            request_id: "r".into(),
            headers: headers.iter().map(header).collect(),
            body_base64: None,
            timeout_ms: None,
            redirect_policy: Default::default(),
            stream_response: false,
        }
    }

    fn own() -> BTreeMap<OsString, OsString> {
        [("SET", "s"), ("EMPTY", ""), ("AWS_SECRET_ACCESS_KEY", "k"), ("OUTPOST_TOKEN", "t"), ("LINES", "a\nb")]
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn refusal(params: HttpRequestParams) -> String {
        match exchange(params, &own()) {
            Err(fault) => {
                assert_eq!(fault.code, outpost_wire::fault::INVALID_PARAMS);
                fault.message
            }
            Ok(_) => panic!("it was taken"),
        }
    }

    #[test]
    fn headers_are_kept_in_order_and_filled_from_variables() {
        let exchange = exchange(params(&[("X-A", "1", None), ("x-a", "2", None), ("B", "Bearer ", Some("SET"))]), &own()).unwrap();
        assert_eq!(exchange.headers.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(exchange.headers["b"], "Bearer s");
        assert!(exchange.headers["b"].is_sensitive());
        assert_eq!(exchange.url.as_str(), "http://h/p?q");
    }

    #[test]
    fn some_variables_stay_here() {
        let with = |variable| refusal(params(&[("A", "", Some(variable))]));
        assert_eq!(with("NOT_SET"), "http/request header A requires executor environment variable NOT_SET");
        assert_eq!(with("EMPTY"), "http/request header A requires executor environment variable EMPTY");
        for name in ["AWS_SECRET_ACCESS_KEY", "openai_api_key", "OUTPOST_TOKEN", "OPENAI_IDENTITY_TOKEN_FILE"] {
            assert_eq!(with(name), format!("http/request header A cannot use executor environment variable {name}"));
        }
        assert_eq!(with("LINES"), "http/request header value is invalid for A: failed to parse header value");
    }

    #[test]
    fn a_trace_is_passed_on_unless_there_is_one() {
        let trace = TraceContext {
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
            tracestate: Some("a=b".into()),
        };
        let mut headers = HeaderMap::new();
        add_trace(&mut headers, &trace);
        assert_eq!((headers.len(), &headers["tracestate"]), (2, &HeaderValue::from_static("a=b")));
        let mut headers = HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_static("own"))]);
        add_trace(&mut headers, &trace);
        assert_eq!((headers.len(), &headers["traceparent"]), (1, &HeaderValue::from_static("own")));
        let mut headers = HeaderMap::new();
        add_trace(&mut headers, &TraceContext { traceparent: Some("banana".into()), ..trace });
        assert!(headers.is_empty());
    }
}

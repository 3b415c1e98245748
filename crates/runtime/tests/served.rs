//! How large a window a server really gives a model: asked of a server of pages.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use outpost_runtime::model::built_in;
use outpost_runtime::models::Models;

/// The answers at each path: the last one is given for good, those before it once.
type Answers = Arc<Mutex<BTreeMap<&'static str, Vec<(u16, &'static str)>>>>;

/// A server of pages, which keeps what it was asked.
struct Pages {
    base_url: String,
    pages: Answers,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Pages {
    fn start(pages: &[(&'static str, &[(u16, &'static str)])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let pages = Arc::new(Mutex::new(pages.iter().map(|(path, answers)| (*path, answers.to_vec())).collect()));
        let server = Self { base_url, pages, asked: Arc::default() };
        let (pages, asked) = (server.pages.clone(), server.asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                Self::answer(stream.unwrap(), &pages, &asked);
            }
        });
        server
    }

    fn answer(stream: TcpStream, pages: &Answers, asked: &Mutex<Vec<String>>) {
        let mut stream = BufReader::new(stream);
        let (mut path, mut length) = (String::new(), 0);
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let line = line.trim().to_ascii_lowercase();
            if path.is_empty() {
                path = line.split(' ').nth(1).unwrap().to_owned();
            } else if let Some(told) = line.strip_prefix("content-length:") {
                length = told.trim().parse().unwrap();
            } else if line.is_empty() {
                break;
            }
        }
        stream.read_exact(&mut vec![0; length]).unwrap();
        let (status, body) = match pages.lock().unwrap().get_mut(path.as_str()) {
            Some(answers) if answers.len() > 1 => answers.remove(0),
            Some(answers) => answers[0],
            None => (404, ""),
        };
        asked.lock().unwrap().push(path);
        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
    }

    /// The paths that were asked for since the last look, in order of their names.
    fn asked(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.sort();
        asked
    }

    fn models(&self) -> Models {
        let mut provider = built_in().remove("ollama").unwrap();
        provider.base_url.clone_from(&self.base_url);
        let default = ("near".to_owned(), "qwen3".to_owned());
        Models::new([("near".to_owned(), provider)].into(), default, Arc::new(|_| None), Arc::new(String::new))
    }
}

async fn window(models: &Models) -> Option<u64> {
    models.served_context("near", &models.get(None).unwrap(), "qwen3").await
}

#[tokio::test]
async fn what_ollama_serves_is_known_as_soon_as_the_model_is_loaded() {
    let loaded = r#"{"models": [{"name": "qwen3:latest", "context_length": 4096}]}"#;
    let server = Pages::start(&[
        ("/v1/models", &[(200, r#"{"data": [{"id": "qwen3:latest"}]}"#)]),
        ("/api/ps", &[(200, r#"{"models": []}"#), (200, loaded)]),
        ("/api/show", &[(200, r#"{"parameters": "top_k 20", "model_info": {"qwen3.context_length": 40960}}"#)]),
    ]);
    let models = server.models();
    assert_eq!(window(&models).await, None);
    assert_eq!(server.asked(), ["/api/ps", "/api/show", "/props", "/v1/models"]);
    assert_eq!(window(&models).await, Some(4096));
    assert_eq!(server.asked(), ["/api/ps"], "what the server does not say is not asked again");
    assert_eq!(window(&models).await, Some(4096));
    assert!(server.asked().is_empty(), "what is known is not asked again");
}

#[tokio::test]
async fn a_server_that_loads_its_model_is_asked_again() {
    let loading = (503, r#"{"error": {"message": "Loading model"}}"#);
    let props = (200, r#"{"default_generation_settings": {"n_ctx": 8192}}"#);
    let server = Pages::start(&[("/props", &[loading, loading, props]), ("/api/ps", &[loading, (404, "")])]);
    let models = server.models();
    assert_eq!((window(&models).await, window(&models).await, window(&models).await), (None, None, Some(8192)));
    assert_eq!(server.asked(), ["/api/ps", "/api/ps", "/api/show", "/props", "/props", "/props", "/v1/models"]);
}

#[tokio::test]
async fn a_server_that_does_not_say_it_is_asked_once() {
    let server = Pages::start(&[("/v1/models", &[(200, r#"{"data": [{"id": "qwen3"}]}"#)]), ("/props", &[(200, "<html>")])]);
    let models = server.models();
    assert_eq!((window(&models).await, window(&models).await), (None, None));
    assert_eq!(server.asked().len(), 4);
}

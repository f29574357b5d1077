//! Serves HTTP to programs of this machine: the API of a gateway, and the dashboard.
//!
//! Invariant: the number of open connections is bounded, and so is the time that each of them may take for the head of
//! a request, for the rest until the answer begins, and for taking a part of the answer. Further connections wait in the kernel's queue.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use ropewalk_api::Failed;
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

/// Bounds of a listener.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Most connections at a time. More: more clients at once, memory.
    connections: usize,
    /// Time for the head of a request, the pause before it included. Longer: surer on a busy machine, a client that says
    /// nothing keeps its place for longer.
    head: Duration,
    /// Time from there until the answer begins. Longer than what any request takes, or its work is done unseen.
    answer: Duration,
    /// Time in which a client has to take a part of its answer. Longer: surer over a slow way, a client that does not
    /// read keeps its place for longer.
    write: Duration,
}

const BOUNDS: Bounds = Bounds {
    connections: 32,
    head: Duration::from_secs(10),
    answer: Duration::from_mins(1),
    write: Duration::from_secs(10),
};

/// Serves what connects, until the runtime ends.
pub async fn serve<L: Listener>(listener: L, router: Router) {
    serve_within(BOUNDS, listener, router).await;
}

async fn serve_within<L: Listener>(bounds: Bounds, mut listener: L, router: Router) {
    let router = router.layer(middleware::from_fn_with_state(bounds.answer, in_time));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head);
    let places = Arc::new(Semaphore::new(bounds.connections));
    loop {
        // The semaphore is never closed; without a place the connection would merely go uncounted.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        let (stream, _) = listener.accept().await;
        let service = TowerToHyperService::new(router.clone());
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(bounds.write));
        let served = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
        tokio::spawn(async move {
            // A client that went away needs no answer.
            let _ = served.await;
            drop(place);
        });
    }
}

async fn in_time(State(most): State<Duration>, request: Request, next: Next) -> Response {
    let answered = tokio::time::timeout(most, next.run(request)).await;
    answered.unwrap_or_else(|_| {
        let error = format!("no answer within {} s", most.as_secs());
        (StatusCode::REQUEST_TIMEOUT, Json(Failed { error })).into_response()
    })
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use axum::routing::{get, post};
    use tokio::net::TcpListener;

    use super::*;

    /// Two connections, and little time.
    fn start() -> SocketAddr {
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                ready.send(listener.local_addr().unwrap()).unwrap();
                let bounds = Bounds {
                    connections: 2,
                    head: Duration::from_millis(500),
                    answer: Duration::from_millis(500),
                    write: Duration::from_millis(500),
                };
                let router = Router::new()
                    .route("/", get(|| async { "here" }))
                    .route("/much", get(|| async { "x".repeat(32 << 20) }))
                    .route("/text", post(|text: String| async { text }));
                serve_within(bounds, listener, router).await;
            });
        });
        is_ready.recv().unwrap()
    }

    fn connect(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        let patience = Duration::from_secs(10);
        stream.set_read_timeout(Some(patience)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    }

    fn rest(mut stream: TcpStream) -> io::Result<String> {
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn clients_that_say_nothing_or_not_all_lose_their_places_to_others() {
        let address = start();
        let mute = connect(address, "");
        let slow = connect(address, "GET / HTTP/1.1\r\nhost: x\r\n");
        // Both places are taken until then.
        let third = connect(
            address,
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        );
        assert!(rest(third).unwrap().ends_with("here"));
        for stream in [mute, slow] {
            let said = rest(stream).unwrap();
            assert!(!said.contains(" 200 "), "{said}");
        }
        // One that never ends its body.
        let head =
            "POST /text HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 9\r\n\r\nx";
        let said = rest(connect(address, head)).unwrap();
        assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
    }

    #[test]
    fn clients_that_do_not_read_lose_their_places_to_others() {
        let address = start();
        let ask = "GET /much HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20);
        let deaf = [(); 2].map(|()| connect(address, &ask));
        let third = connect(
            address,
            "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        );
        assert!(rest(third).unwrap().ends_with("here"));
        drop(deaf);
    }

    #[test]
    fn no_more_connections_are_served_than_there_are_places() {
        let address = start();
        let held = [(); 2].map(|()| connect(address, ""));
        let mut third = connect(address, "GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        third
            .set_read_timeout(Some(Duration::from_millis(150)))
            .unwrap();
        let error = third.read(&mut [0]).unwrap_err().kind();
        assert!(
            matches!(error, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            "{error}"
        );
        drop(held);
        third
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        assert_eq!(third.read(&mut [0]).unwrap(), 1);
    }
}

use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

/// Connects within a limit that covers the name's resolution too: a request that never left is not "unknown".
#[derive(Clone)]
pub(super) struct InTime {
    connector: HttpConnector,
    limit: Duration,
}

impl InTime {
    pub(super) fn new(limit: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_keepalive(Some(Duration::from_secs(60)));
        Self { connector, limit }
    }
}

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

impl Service<Uri> for InTime {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connector.poll_ready(context).map_err(io::Error::other)
    }

    fn call(&mut self, uri: Uri) -> Connecting {
        let (connecting, limit) = (self.connector.call(uri), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected.map_err(io::Error::other),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {limit:?}"),
                )),
            }
        })
    }
}

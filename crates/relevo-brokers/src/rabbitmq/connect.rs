use super::config::RabbitMqConfig;
use super::socket::Socket;
use crate::turns::share_of;
use lapin::options::ConfirmSelectOptions;
use lapin::tcp::AsyncTcpStream;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Channel, Connection, ConnectionProperties};
use std::ops::Deref;
use std::time::{Duration, Instant};

/// A connection that is logged in, and the socket below it. Whoever drops it has hung up: by itself it would live on while
/// the broker owes it an answer.
pub(super) struct Link {
    connection: Connection,
    socket: Socket,
}

impl Deref for Link {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Link {
    /// Says goodbye, and cuts the socket of a broker that does not answer within the limit: the client waits for it longer
    /// than anybody should, with a thread and a file of its own.
    pub(super) async fn hang_up(&self, limit: Duration) -> Result<(), String> {
        // Whoever waits for the goodbye may give up before the limit does.
        let goodbye = self.socket.clone().cut_when_dropped();
        let closing = self.connection.close(200, "relevo stops".into());
        within(limit, "closing", closing).await?;
        goodbye.keep();
        Ok(())
    }

    /// Ends it without a word.
    pub(super) fn cut(&self) {
        self.socket.cut();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Connects to the first node that takes us, and logs in. All nodes together may take `connect_timeout`: each has a share
/// of what those before it left. The reason of a failure names addresses, nothing secret.
pub(super) async fn connect(config: &RabbitMqConfig, role: &str) -> Result<Link, String> {
    let (began, mut failed) = (Instant::now(), Vec::new());
    let nodes = config.nodes.len();
    for (tried, (host, port)) in config.turns.over(&config.nodes).enumerate() {
        let left = config.connect_timeout.saturating_sub(began.elapsed());
        let share = share_of(left, nodes - tried);
        match connect_to(config, host, *port, role, share).await {
            Ok(link) => return Ok(link),
            Err(why) => failed.push(why),
        }
    }
    Err(failed.join("; "))
}

async fn connect_to(
    config: &RabbitMqConfig,
    host: &str,
    port: u16,
    role: &str,
    limit: Duration,
) -> Result<Link, String> {
    let at = |why: String| format!("{}: {why}", config.address_of(&format!("{host}:{port}")));
    let runtime = lapin::runtime::default_runtime().map_err(|error| at(error.to_string()))?;
    let name = format!("relevo {} {role}", config.source);
    // Never with recovery by the client: a channel that came back by itself would answer for messages of another.
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let mut uri = config.uri.clone();
    (uri.authority.host, uri.authority.port) = (host.to_owned(), port);
    let socket = Socket::default();
    let (dialled, tls) = (socket.clone(), config.tls.clone());
    // Whoever gives up, for whatever reason, leaves nothing behind that waits on.
    let attempt = socket.clone().cut_when_dropped();
    let connecting = Connection::connector(
        uri,
        runtime,
        async move |uri: AMQPUri, runtime| {
            let addresses =
                runtime.to_socket_addrs((uri.authority.host.clone(), uri.authority.port));
            let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
            if let AsyncTcpStream::Plain(plain) = &stream {
                dialled.hold(plain.get_ref())?;
            }
            match uri.scheme {
                AMQPScheme::AMQP => Ok(stream),
                AMQPScheme::AMQPS => Ok(stream.into_tls(&uri.authority.host, tls.as_ref()).await?),
            }
        },
        properties,
    );
    let connection = within(limit, "connecting", connecting).await.map_err(at)?;
    attempt.keep();
    Ok(Link { connection, socket })
}

/// A channel on which the broker confirms every message.
pub(super) async fn confirming(
    connection: &Connection,
    limit: Duration,
) -> Result<Channel, String> {
    within(limit, "opening a channel", async {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    })
    .await
}

/// What does not end within the limit has failed.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = lapin::Result<T>>,
) -> Result<T, String> {
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(reason(&error)),
        Err(_) => Err(format!("{what} took longer than {limit:?}")),
    }
}

/// What the broker or the network said, in its own words.
pub(super) fn reason(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    /// A method of class 10, as a server frames it.
    fn framed(method: &[u8]) -> Vec<u8> {
        let size = (2 + method.len()) as u32;
        [&[1, 0, 0][..], &size.to_be_bytes(), &[0, 10], method, &[0xCE]].concat()
    }

    async fn skip_frame(peer: &mut TcpStream) {
        let mut head = [0; 7];
        peer.read_exact(&mut head).await.unwrap();
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
        peer.read_exact(&mut vec![0; size as usize + 1]).await.unwrap();
    }

    /// A server that lets a client log in, and does not say another word.
    async fn let_in(server: &TcpListener) -> TcpStream {
        let mut peer = server.accept().await.unwrap().0;
        peer.read_exact(&mut [0; 8]).await.unwrap();
        let start = b"\0\x0a\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05en_US";
        peer.write_all(&framed(start)).await.unwrap();
        skip_frame(&mut peer).await;
        let tune = b"\0\x1e\x07\xff\0\x02\0\0\0\0";
        peer.write_all(&framed(tune)).await.unwrap();
        // The answer to that, and which virtual host it wants.
        skip_frame(&mut peer).await;
        skip_frame(&mut peer).await;
        peer.write_all(&framed(b"\0\x29\0")).await.unwrap();
        peer
    }

    async fn logged_in(server: &TcpListener) -> (Link, TcpStream) {
        let url = format!("amqp://{}", server.local_addr().unwrap());
        // More time than any clock has.
        let config = RabbitMqConfig::to(&url).unwrap().connect_timeout(Duration::MAX);
        let (link, peer) = tokio::join!(connect(&config, "tests"), let_in(server));
        (link.unwrap(), peer)
    }

    async fn assert_ends(mut peer: TcpStream) {
        let mut said = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(30), peer.read_to_end(&mut said)).await;
        assert!(end.is_ok(), "the connection is still open, after {said:?}");
    }

    #[tokio::test]
    async fn a_connection_that_is_dropped_does_not_wait_for_a_silent_broker() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (link, peer) = logged_in(&server).await;
        drop(link);
        assert_ends(peer).await;
    }

    #[tokio::test]
    async fn whoever_gives_up_on_a_goodbye_hangs_up() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (link, peer) = logged_in(&server).await;
        let goodbye = link.hang_up(Duration::from_secs(600));
        let given_up = tokio::time::timeout(Duration::from_millis(50), goodbye).await;
        assert!(given_up.is_err(), "{given_up:?}");
        assert_ends(peer).await;
        drop(link);
    }

    #[tokio::test]
    async fn silent_nodes_together_take_no_longer_than_one() {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let at: Vec<_> = nodes.iter().map(|node| node.local_addr().unwrap().to_string()).collect();
        let config = RabbitMqConfig::to(&format!("amqp://{}", at.join(","))).unwrap();
        let limit = Duration::from_secs(3);
        let began = Instant::now();
        let why = connect(&config.connect_timeout(limit), "tests").await.err().unwrap();
        assert!(began.elapsed() < limit * 2, "{:?}", began.elapsed());
        assert_eq!(why.matches("connecting took longer than").count(), 3, "{why}");
    }

    #[tokio::test]
    async fn whoever_gives_up_on_a_silent_broker_hangs_up() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("amqp://{}", silent.local_addr().unwrap());
        let config = RabbitMqConfig::to(&url).unwrap().connect_timeout(Duration::from_millis(300));
        let (given_up, accepted) = tokio::join!(connect(&config, "tests"), silent.accept());
        let why = given_up.err().unwrap();
        assert!(why.contains("connecting took longer than "), "{why}");
        assert_ends(accepted.unwrap().0).await;
        let again = tokio::time::timeout(Duration::from_secs(2), silent.accept()).await;
        assert!(again.is_err(), "nobody goes on trying");
    }
}

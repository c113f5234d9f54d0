//! Who is not let in, and who is told why.

use tokio::time::{Instant, timeout};
use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Endpoint};
use tower::service_fn;

use super::*;
use crate::wire::{
    Secret,
    admission::PROVE_WITHIN,
    agents::TOKEN,
    convert_agent::Said,
    proto::{self, agent_head_client::AgentHeadClient},
};

/// A client that says what it likes.
pub(super) async fn client(stream: Box<dyn Io>) -> AgentHeadClient<tonic::transport::Channel> {
    let mut stream = Some(hyper_util::rt::TokioIo::new(stream));
    let connector = service_fn(move |_: tonic::transport::Uri| {
        let stream = stream.take().ok_or_else(|| std::io::Error::other("once"));
        async { stream }
    });
    let channel = Endpoint::from_static("http://head").connect_with_connector(connector).await;
    AgentHeadClient::new(channel.expect("it speaks HTTP/2"))
}

async fn join(head: &Head, token: Option<&str>, messages: Vec<proto::AgentEvent>) -> Result<(), Status> {
    let (stream, _way) = head.way();
    let mut client = client(head.secured(stream).await.expect("it is the right head")).await;
    let mut request = Request::new(tokio_stream::iter(messages));
    if let Some(token) = token {
        request.metadata_mut().insert(TOKEN, MetadataValue::try_from(token).expect("a header"));
    }
    client.join(request).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn without_the_token_nobody_gets_in_and_both_sides_know_why() {
    let mut head = Head::new();
    let other = Secret::random().expect("random numbers");
    for (token, expected) in [(None, "it has no token; "), (Some(other.reveal()), "it has another token: ")] {
        let status = join(&head, token, vec![hello("gpu1").into()]).await.expect_err("it is refused");
        assert_eq!(status.code(), Code::Unauthenticated);
        let (name, reason) = head.next_refused().await;
        assert_eq!((name.as_str(), reason.as_str()), ("a test", status.message()));
        assert!(reason.starts_with(expected) && !reason.contains(other.reveal()), "{reason}");
    }
    let (reached, _way) = head.reached().await;
    reached.join(hello("gpu1")).await.expect("others still come in");
}

#[tokio::test(start_paused = true)]
async fn another_build_is_refused_and_told_what_to_do() {
    let mut head = Head::new();
    let (reached, _way) = head.reached().await;
    let other = AgentHello { build: "pollux-tune 0.0.7".to_owned(), ..hello("gpu1") };
    let error = reached.join(other).await.expect_err("it is refused");
    let (name, reason) = head.next_refused().await;
    assert!(matches!(&error, Error::AgentRefused(said) if *said == reason), "{error}");
    assert!(!error.is_temporary() && name == "gpu1", "{name}");
    for part in ["pollux-tune 0.0.7", build(), "start the agent from the file that the head runs"] {
        assert!(reason.contains(part), "{reason}");
    }
}

/// Whatever else another build has put into its hello.
#[tokio::test(start_paused = true)]
async fn another_build_is_recognised_by_one_field_alone() {
    let mut head = Head::new();
    let token = head.identity.token.clone();
    let mut first = proto::AgentEvent::from(hello("gpu1"));
    if let Some(proto::agent_event::Kind::Hello(hello)) = &mut first.kind {
        hello.build = "another".to_owned();
        hello.address = Some("nowhere".to_owned());
    }
    let status = join(&head, Some(token.reveal()), vec![first]).await.expect_err("it is refused");
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(head.next_refused().await.1.contains("another program"));
}

#[tokio::test(start_paused = true)]
async fn the_first_message_is_a_hello() {
    let mut head = Head::new();
    let token = head.identity.token.clone();
    let beat = proto::AgentEvent::from(Said::Heartbeat { at_ms: 1 });
    let status = join(&head, Some(token.reveal()), vec![beat]).await.expect_err("it is refused");
    assert_eq!(status.message(), "the first message of an agent: it is not a hello");
    assert_eq!(head.next_refused().await.1, status.message());
}

/// An agent that makes no sense is told so, and lost.
#[tokio::test(start_paused = true)]
async fn nonsense_ends_the_connection() {
    let mut head = Head::new();
    let (stream, _way) = head.way();
    let mut client = client(head.secured(stream).await.expect("it is the right head")).await;
    let messages = vec![hello("gpu1").into(), hello("gpu1").into()];
    let mut request =
        Request::new(tokio_stream::StreamExt::chain(tokio_stream::iter(messages), tokio_stream::pending()));
    let token = MetadataValue::try_from(head.identity.token.reveal()).expect("a header");
    request.metadata_mut().insert(TOKEN, token);
    let mut commands = client.join(request).await.expect("it is let in").into_inner();
    let (id, _handle) = head.next_joined().await;
    let status = loop {
        match commands.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.message(), "AgentHello: it comes again, after the first message");
    assert_eq!(head.next_refused().await, ("gpu1".to_owned(), status.message().to_owned()));
    assert_eq!(head.next_lost().await.0, id);
}

/// Neither agent nor head say anything to each other.
#[tokio::test(start_paused = true)]
async fn another_certificate_is_refused_before_the_token_is_sent() {
    let mut head = Head::new();
    let other = Head::new();
    let (stream, _way) = head.way();
    let error = other.secured(stream).await.map(drop).expect_err("it is another head");
    assert!(matches!(error, Error::OtherHead { .. }) && !error.is_temporary(), "{error}");
    assert!(error.to_string().contains("the token was not sent"), "{error}");
    let (name, reason) = head.next_refused().await;
    assert_eq!(name, "a test");
    assert!(reason.starts_with("it does not trust the certificate of this head"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn plain_text_is_refused() {
    let mut head = Head::new();
    let (mut stream, _way) = head.way();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("it listens");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let (_, reason) = head.next_refused().await;
    assert!(reason.starts_with("it does not speak TLS: plain text is not accepted"), "{reason}");
}

/// Who has agreed on a key, but does not say who it is, has its time, and may not ask for anything.
#[tokio::test(start_paused = true)]
async fn a_stranger_gets_nothing_and_has_to_go() {
    let head = Head::new();
    let (stream, _way) = head.way();
    let mut client = client(head.secured(stream).await.expect("it is the right head")).await;
    let since = Instant::now();
    let request = proto::ListRequest { study: STUDY.to_string(), trial: 1 };
    let status = client.list(request.clone()).await.expect_err("it is a stranger");
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "an agent has to join first"));
    let held = proto::HeldCheckpoint { study: STUDY.to_string(), trial: 1, file: "a.checkpoint".to_owned() };
    let wanted = proto::DownloadRequest { checkpoint: Some(held.clone()) };
    assert_eq!(client.download(wanted).await.map(drop).expect_err("so it is").code(), Code::Unauthenticated);
    let begin = proto::UploadBegin { checkpoint: Some(held), bytes: 1 };
    let part = proto::UploadPart { kind: Some(proto::upload_part::Kind::Begin(begin)) };
    let status = client.upload(tokio_stream::iter([part])).await.expect_err("so it is");
    assert_eq!(status.code(), Code::Unauthenticated);
    while client.list(request.clone()).await.is_err_and(|status| status.code() == Code::Unauthenticated) {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert!(since.elapsed() < 2 * PROVE_WITHIN, "it is still here");
    }
    assert!(since.elapsed() >= PROVE_WITHIN);
}

/// A handshake that stands still is waited for by nobody else.
#[tokio::test(start_paused = true)]
async fn half_a_handshake_holds_up_nobody() {
    let mut head = Head::new();
    let mut stalled = Vec::new();
    for _ in 0..300 {
        let (mut stream, way) = head.way();
        // The beginning of a message of TLS.
        stream.write_all(&[22, 3, 1, 2, 0, 1]).await.expect("it listens");
        stalled.push((stream, way));
    }
    let since = Instant::now();
    timeout(PROVE_WITHIN, head.joined()).await.expect("at once");
    assert!(since.elapsed().is_zero(), "{:?}", since.elapsed());
}

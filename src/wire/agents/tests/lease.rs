//! Who notices what, and when.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{
    ids::{NodeId, SlotId},
    trials::agent::{AgentEvent, FENCE, HEARTBEAT, LEASE},
    wire::ConnectionEnd,
};

fn start(process: u32) -> AgentCommand {
    AgentCommand::Start { node: NodeId(1), process }
}

fn worker(index: u32) -> AgentEvent {
    AgentEvent::WorkerJoined { slot: SlotId { node: NodeId(1), index } }
}

async fn event(head: &mut Head) -> AgentEvent {
    match head.heard.recv().await {
        Some(AgentGatewayEvent::Event { event, .. }) => event,
        other => panic!("{other:?}"),
    }
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn messages_go_both_ways_in_order() {
    let mut head = Head::new();
    let (mut agent, _, handle, _way) = head.joined().await;
    for number in 0..2000 {
        agent.events.send(worker(number)).expect("the head is there");
        handle.send(start(number)).expect("the agent is there");
    }
    for number in 0..2000 {
        assert_eq!(event(&mut head).await, worker(number));
        assert_eq!(agent.commands.recv().await, Some(start(number)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_agent_is_kept_for_hours() {
    let mut head = Head::new();
    let (mut agent, _, handle, _way) = head.joined().await;
    sleep(Duration::from_secs(7200)).await;
    assert!(head.heard.try_recv().is_err() && agent.ended.try_recv().is_err());
    handle.send(start(1)).expect("the agent is there");
    assert_eq!(agent.commands.recv().await, Some(start(1)));
}

/// Both ends keep their promise: the agent has ended what it runs before the head counts on it.
#[tokio::test(start_paused = true)]
async fn when_the_network_fails_the_agent_ends_before_the_head_gives_it_up() {
    let mut head = Head::new();
    let (mut agent, id, _handle, way) = head.joined().await;
    sleep(Duration::from_secs(100)).await;
    let since = Instant::now();
    way.cut();
    assert_eq!(agent.commands.recv().await, None);
    let fenced = seconds(since);
    assert_eq!(agent.ended.await, Ok(ConnectionEnd::Silent));
    let (lost, reason) = head.next_lost().await;
    let given_up = seconds(since);
    assert_eq!((lost, reason.as_str()), (id, "nothing was heard of it for 30 s"));
    let beat = HEARTBEAT.as_secs_f64();
    assert!(fenced <= FENCE.as_secs_f64() && fenced >= FENCE.as_secs_f64() - 3.0 * beat, "{fenced}");
    assert!(given_up <= LEASE.as_secs_f64() + beat && given_up >= LEASE.as_secs_f64() - beat, "{given_up}");
}

/// The agent hears its head all the time, but the head does not hear the agent.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_heard_ends_before_the_head_gives_it_up() {
    let mut head = Head::new();
    let (mut agent, id, _handle, way) = head.joined().await;
    sleep(Duration::from_secs(100)).await;
    let since = Instant::now();
    way.up.send_replace(false);
    assert_eq!(agent.commands.recv().await, None);
    assert!(seconds(since) <= FENCE.as_secs_f64(), "{}", seconds(since));
    assert_eq!(agent.ended.await, Ok(ConnectionEnd::Silent));
    let (lost, reason) = head.next_lost().await;
    assert_eq!((lost, reason.as_str()), (id, "nothing was heard of it for 30 s"));
    assert!(seconds(since) >= LEASE.as_secs_f64() - 2.0, "{}", seconds(since));
}

/// The head hears at once that a silent one was given up by its agent.
#[tokio::test(start_paused = true)]
async fn a_head_that_falls_silent_is_left() {
    let mut head = Head::new();
    let (mut agent, id, _handle, way) = head.joined().await;
    let since = Instant::now();
    way.down.send_replace(false);
    assert_eq!(agent.commands.recv().await, None);
    assert_eq!(agent.ended.await, Ok(ConnectionEnd::Silent));
    assert_eq!(head.next_lost().await.0, id);
    let took = seconds(since);
    assert!((FENCE.as_secs_f64() - 2.0..=FENCE.as_secs_f64() + 1.0).contains(&took), "{took}");
}

/// Shorter than the lease: nobody notices, and nothing is lost.
#[tokio::test(start_paused = true)]
async fn a_short_failure_of_the_network_costs_nothing() {
    let mut head = Head::new();
    let (mut agent, _, handle, way) = head.joined().await;
    for _ in 0..5 {
        sleep(Duration::from_secs(5)).await;
        way.cut();
        handle.send(start(1)).expect("the agent is there");
        agent.events.send(worker(1)).expect("the head is there");
        sleep(FENCE.mul_f64(0.8)).await;
        way.up.send_replace(true);
        way.down.send_replace(true);
        assert_eq!(agent.commands.recv().await, Some(start(1)));
        assert_eq!(event(&mut head).await, worker(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_agent_is_lost_at_once() {
    let mut head = Head::new();
    let (near, far, _way) = way();
    head.door.knock(Box::new(far), "a test".to_owned());
    // Killed: the system closes its socket, and nobody says farewell.
    let (mut relay, end) = duplex(1 << 16);
    let process = tokio::spawn(async move {
        let mut near = near;
        let _ = tokio::io::copy_bidirectional(&mut relay, &mut near).await;
    });
    let stream = head.secured(Box::new(end)).await.expect("it is the right head");
    let reached = ReachedHead::detached(stream, &head.identity.token);
    let agent = reached.join(hello("gpu1")).await.expect("it is let in");
    let (id, _handle) = head.next_joined().await;
    let since = Instant::now();
    process.abort();
    let (lost, reason) = head.next_lost().await;
    assert_eq!(lost, id);
    assert!(reason.starts_with("its connection has ended: "), "{reason}");
    assert!(since.elapsed() < HEARTBEAT);
    let ended = agent.ended.await.expect("there is a reason");
    assert!(matches!(ended, ConnectionEnd::Broken(_)), "{ended:?}");
    assert!(since.elapsed() < HEARTBEAT);
}

/// What is said last is heard, and the agent learns when that is so.
#[tokio::test(start_paused = true)]
async fn an_agent_leaves_when_everything_was_heard() {
    let mut head = Head::new();
    let (mut agent, id, _handle, _way) = head.joined().await;
    let since = Instant::now();
    for number in 0..500 {
        agent.events.send(worker(number)).expect("the head is there");
    }
    drop(agent.events);
    assert_eq!(agent.commands.recv().await, None);
    assert_eq!(agent.ended.await, Ok(ConnectionEnd::Closed));
    for number in 0..500 {
        assert_eq!(event(&mut head).await, worker(number));
    }
    assert_eq!(head.next_lost().await, (id, "it has left".to_owned()));
    assert!(since.elapsed() < HEARTBEAT);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_not_needed_any_more_is_sent_home() {
    let mut head = Head::new();
    let (mut agent, id, handle, _way) = head.joined().await;
    handle.send(AgentCommand::Leave { reason: "the study is over".to_owned() }).expect("it is there");
    drop(handle);
    let leave = agent.commands.recv().await;
    assert!(matches!(leave, Some(AgentCommand::Leave { .. })), "{leave:?}");
    assert_eq!(agent.commands.recv().await, None);
    agent.events.send(worker(1)).expect("it is still heard");
    drop(agent);
    assert_eq!(event(&mut head).await, worker(1));
    assert_eq!(head.next_lost().await, (id, "it has left".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_head_that_ends_is_noticed_at_once() {
    let mut head = Head::new();
    let (mut agent, id, _handle, _way) = head.joined().await;
    let since = Instant::now();
    drop(head.open);
    assert_eq!(agent.commands.recv().await, None);
    assert_eq!(agent.ended.await, Ok(ConnectionEnd::Closed));
    assert!(since.elapsed() < HEARTBEAT);
    match head.heard.recv().await {
        Some(AgentGatewayEvent::Lost { agent, .. }) => assert_eq!(agent, id),
        other => panic!("{other:?}"),
    }
}

/// A head whose disk is full receives nothing for a while. Its agents are as alive as before.
#[tokio::test(start_paused = true)]
async fn a_busy_head_loses_neither_agents_nor_events() {
    let mut head = Head::new();
    let (mut agent, _, _handle, _way) = head.joined().await;
    for number in 0..5000 {
        agent.events.send(worker(number)).expect("the head is there");
    }
    sleep(Duration::from_secs(600)).await;
    assert!(agent.ended.try_recv().is_err());
    for number in 0..5000 {
        assert_eq!(event(&mut head).await, worker(number));
    }
}

/// However much is said, each side is heard to be there.
#[tokio::test(start_paused = true)]
async fn a_talkative_agent_stays() {
    let mut head = Head::new();
    let (mut agent, _, handle, _way) = head.joined().await;
    let since = Instant::now();
    let mut number = 0;
    while since.elapsed() < 2 * LEASE {
        for _ in 0..100 {
            agent.events.send(worker(number)).expect("the head is there");
            handle.send(start(number)).expect("the agent is there");
            number += 1;
        }
        sleep(Duration::from_millis(100)).await;
        for _ in 0..100 {
            let heard = timeout(HEARTBEAT, event(&mut head)).await;
            heard.expect("it comes in time");
            agent.commands.recv().await.expect("so does this");
        }
    }
}

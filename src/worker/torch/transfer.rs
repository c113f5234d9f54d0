//! How a team forms, and how its members get the state of the trial.

use std::{sync::Arc, time::Instant};

use c10d::{GroupOptions, ProcessGroup, Store};
use tch::{Device, Kind, Tensor};

use super::{checkpoint, session::Session, store::TorchStore, team::Team};
use crate::{
    trials::group::{Form, Pause},
    wire::Secret,
    worker::{
        Error,
        abort::Aborts,
        link::LINK_TIMEOUT,
        protocol::Role,
        rendezvous::{CONNECT_TIMEOUT, Rendezvous, Room, STEP_TIMEOUT, await_all},
    },
};

/// How the members of one group connect.
pub(super) struct StateTransfer<'a> {
    /// What this worker hosts.
    own: &'a Rendezvous,
    options: GroupOptions,
    form: &'a Form,
    aborts: &'a Aborts,
}

impl<'a> StateTransfer<'a> {
    pub(super) fn new(own: &'a Rendezvous, device: Device, form: &'a Form, aborts: &'a Aborts) -> Self {
        let backend = match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => c10d::Backend::Nccl { device },
            // Where this worker can be reached anyway, and nowhere else.
            _ => c10d::Backend::Gloo(c10d::Interface::Host(host_of(own.address()).to_owned())),
        };
        let options = GroupOptions {
            backend,
            connect_timeout: CONNECT_TIMEOUT,
            link_timeout: LINK_TIMEOUT,
            timeout: STEP_TIMEOUT,
        };
        Self { own, options, form, aborts }
    }

    /// Brings a group together, and its members up to date. Who only donates gets no team.
    pub(super) async fn run(
        &self,
        role: Role,
        session: &mut Session,
    ) -> Result<(Option<Team>, Pause), Error> {
        let form = self.form;
        let (place, trains) = match role {
            Role::Train(rank) => (rank, true),
            Role::Donate(place) => (place, false),
            Role::Leave => return Ok((None, Pause::default())),
        };
        let began = Instant::now();
        let everybody = form.members.len() + form.donors.len();
        if everybody == 1 {
            catch_up_alone(session)?;
            let mut team = Team::alone();
            session.begin(&mut team)?;
            let pause = Pause {
                total_s: session.books.idle_s(),
                form_s: 0.0,
                hand_over_s: began.elapsed().as_secs_f64(),
            };
            return Ok((Some(team), pause));
        }
        let Room { address, store } =
            self.own.room(form, place, CONNECT_TIMEOUT).map_err(c10d::Error::from)?;
        await_all(&*store, everybody).await.map_err(c10d::Error::from)?;
        let store = Store::custom(&address, Arc::new(TorchStore(store)), CONNECT_TIMEOUT)?;
        let group = ProcessGroup::form(&store.prefix("all")?, place as usize, everybody, &self.options)?;
        self.register(&group);
        let peers = Peers::meet(&store.prefix("all")?, &group, session.device())?;
        let form_s = began.elapsed().as_secs_f64();
        hand_over(&group, &peers, session)?;
        let hand_over_s = began.elapsed().as_secs_f64() - form_s;
        if !trains {
            return Ok((None, Pause::default()));
        }
        let nodes = form.machines();
        let mut team = if form.members.len() == 1 {
            Team::alone()
        } else if form.donors.is_empty() {
            Team::new(nodes, group, &session.flat, session.task.measure_noise)?
        } else {
            let size = form.members.len();
            let store = store.prefix("members")?;
            let group = ProcessGroup::form(&store, place as usize, size, &self.options)?;
            self.register(&group);
            Peers::meet(&store, &group, session.device())?.gather(&group, 0)?;
            Team::new(nodes, group, &session.flat, session.task.measure_noise)?
        };
        session.begin(&mut team)?;
        Ok((Some(team), Pause { total_s: session.books.idle_s(), form_s, hand_over_s }))
    }

    fn register(&self, group: &ProcessGroup) {
        let handle = group.abort_handle();
        self.aborts.register(self.form, Box::new(move || handle.abort()));
    }
}

/// The host of `host:port`.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Without others, the state is here, or in a checkpoint, or nowhere yet.
fn catch_up_alone(session: &mut Session) -> Result<(), Error> {
    if session.books.state_steps().is_none() {
        checkpoint::load(session)?;
    }
    Ok(())
}

/// Who the members are. Gloo takes for a peer whoever calls first: that it is one, it shows by a random number that it has set in the
/// room of the group, where only workers of the study get in.
struct Peers {
    /// By rank.
    tokens: Vec<[i64; 2]>,
    device: Device,
}

impl Peers {
    fn meet(store: &Store, group: &ProcessGroup, device: Device) -> Result<Self, Error> {
        let key = |rank: usize| format!("token/{rank}");
        let mine = Secret::random()?;
        store.set(&key(group.rank()), mine.reveal().as_bytes())?;
        let mut tokens = Vec::with_capacity(group.size());
        for rank in 0..group.size() {
            let text = store.get(&key(rank), CONNECT_TIMEOUT)?;
            let digits = str::from_utf8(&text).ok().and_then(|text| text.split_at_checked(16));
            let number = |digits: &str| u64::from_str_radix(digits, 16).ok().map(u64::cast_signed);
            let token = digits.and_then(|(high, low)| Some([number(high)?, number(low)?]));
            tokens.push(token.ok_or_else(|| stranger(rank))?);
        }
        Ok(Self { tokens, device })
    }

    /// A number with the token of a rank.
    fn sign(&self, rank: usize, number: i64) -> Result<Tensor, Error> {
        let [high, low] = self.tokens.get(rank).copied().ok_or_else(|| stranger(rank))?;
        Ok(Tensor::f_from_slice(&[number, high, low])?.f_to_device(self.device)?)
    }

    /// The number, if it came from the rank.
    fn verify(&self, rank: usize, signed: &Tensor) -> Result<i64, Error> {
        let values = Vec::<i64>::try_from(signed.f_to_device(Device::Cpu)?)?;
        match (values.as_slice(), self.tokens.get(rank)) {
            ([number, token @ ..], Some(expected)) if token == expected => Ok(*number),
            _ => Err(stranger(rank)),
        }
    }

    /// A number of each rank.
    fn gather(&self, group: &ProcessGroup, mine: i64) -> Result<Vec<i64>, Error> {
        let gathered = group.all_gather(&self.sign(group.rank(), mine)?)?;
        gathered.iter().enumerate().map(|(rank, theirs)| self.verify(rank, theirs)).collect()
    }
}

fn stranger(rank: usize) -> Error {
    let message = format!("who connected as rank {rank} is no member of the group");
    c10d::Error::PeerLost { during: "forming a group", message }.into()
}

/// Gives all members the state of the most advanced one. Nothing is sent if all have it already.
fn hand_over(group: &ProcessGroup, peers: &Peers, session: &mut Session) -> Result<(), Error> {
    let mine = session.books.state_steps().map_or(-1, signed);
    let steps = peers.gather(group, mine)?;
    let furthest = steps.iter().copied().max().unwrap_or(-1);
    let source = steps.iter().position(|steps| *steps == furthest).unwrap_or(0);
    if furthest < 0 && group.rank() == source {
        // Nobody has any. The others get what this one finds.
        checkpoint::load(session)?;
    }
    if furthest >= 0 && steps.iter().all(|steps| *steps == furthest) {
        return Ok(());
    }
    send(group, peers, source, session)
}

fn send(group: &ProcessGroup, peers: &Peers, source: usize, session: &mut Session) -> Result<(), Error> {
    let device = session.device();
    let header = serde_json::to_vec(&session.counters())
        .map_err(|error| Error::Protocol(format!("the counters cannot be sent: {error}")))?;
    let mut length = peers.sign(group.rank(), signed(header.len() as u64))?;
    group.broadcast(&mut length, source)?;
    let length = peers.verify(source, &length)?;
    let mut bytes = if group.rank() == source {
        Tensor::f_from_slice(&header)?.f_to_device(device)?
    } else {
        Tensor::f_zeros([length], (Kind::Uint8, device))?
    };
    group.broadcast(&mut bytes, source)?;
    let mut vectors = vec![session.flat.weights.shallow_clone()];
    if session.flat.buffers.numel() > 0 {
        vectors.push(session.flat.buffers.shallow_clone());
    }
    vectors.extend(session.descent.moments.iter().map(Tensor::shallow_clone));
    for vector in &mut vectors {
        group.broadcast(vector, source)?;
    }
    if group.rank() != source {
        let bytes = Vec::<u8>::try_from(bytes.f_to_device(Device::Cpu)?)?;
        let counters = serde_json::from_slice(&bytes)
            .map_err(|error| Error::Protocol(format!("the counters cannot be read: {error}")))?;
        session.restore(counters)?;
    }
    Ok(())
}

/// Steps, members and lengths are far from where this matters.
fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

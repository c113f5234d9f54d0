//! How two processes of a study prove to each other over TCP that both know its secret, without sending it.
//!
//! The caller sends a random number, the host answers with another one and its proof, and only then the caller sends its own proof. A proof
//! is an HMAC-SHA256 with the secret as its key over both numbers, the trial, the round and the address that was called. So nothing of
//! it can be used again, in another round, or at another port; and who has taken over the port of a dead worker learns nothing.

use std::io::{self, ErrorKind};

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Secret;
use crate::ids::{Round, TrialId};

/// The first bytes of a call: what is spoken, and in which version.
const MAGIC: [u8; 4] = *b"ptr1";
const NONCE: usize = 32;
const PROOF: usize = 32;
const CALL: usize = MAGIC.len() + 4 + 8 + NONCE;
const ANSWER: usize = NONCE + PROOF;

type Nonce = [u8; NONCE];

#[derive(Clone, Copy)]
enum Role {
    Host = 1,
    Caller = 2,
}

/// Who meets, and where.
struct Meeting<'a> {
    secret: &'a Secret,
    address: &'a str,
    room: (TrialId, Round),
    /// Of the caller, then of the host.
    nonces: [Nonce; 2],
}

impl Meeting<'_> {
    fn proof(&self, role: Role) -> Hmac<Sha256> {
        let mac = Hmac::new_from_slice(self.secret.reveal().as_bytes());
        let mut mac: Hmac<Sha256> = mac.expect("a key of an HMAC may have any length");
        let (TrialId(trial), Round(round)) = self.room;
        mac.update(&MAGIC);
        mac.update(&[role as u8]);
        mac.update(&trial.to_be_bytes());
        mac.update(&round.to_be_bytes());
        mac.update(&self.nonces[0]);
        mac.update(&self.nonces[1]);
        mac.update(self.address.as_bytes());
        mac
    }
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

fn denied(problem: &'static str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, problem)
}

/// The bytes of fixed length at the begin of others.
fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    all.copy_from_slice(&bytes[..N]);
    all
}

/// The caller's side, without its connection.
struct Caller<'a>(Meeting<'a>);

impl<'a> Caller<'a> {
    fn new(secret: &'a Secret, address: &'a str, room: (TrialId, Round)) -> io::Result<(Self, [u8; CALL])> {
        let nonces = [nonce()?, [0; NONCE]];
        let mut call = [0; CALL];
        call[..4].copy_from_slice(&MAGIC);
        call[4..8].copy_from_slice(&room.0.0.to_be_bytes());
        call[8..16].copy_from_slice(&room.1.0.to_be_bytes());
        call[16..].copy_from_slice(&nonces[0]);
        Ok((Self(Meeting { secret, address, room, nonces }), call))
    }

    fn prove(mut self, answer: &[u8; ANSWER]) -> io::Result<[u8; PROOF]> {
        self.0.nonces[1] = first(answer);
        let theirs = self.0.proof(Role::Host).verify_slice(&answer[NONCE..]);
        theirs.map_err(|_| denied("whoever listens there does not know the secret of the study"))?;
        Ok(self.0.proof(Role::Caller).finalize().into_bytes().into())
    }
}

/// The host's side, without its connection.
struct Host<'a>(Meeting<'a>);

impl<'a> Host<'a> {
    fn new(secret: &'a Secret, address: &'a str, call: &[u8; CALL]) -> io::Result<(Self, [u8; ANSWER])> {
        if call[..4] != MAGIC {
            return Err(denied("it does not speak this protocol"));
        }
        let room =
            (TrialId(u32::from_be_bytes(first(&call[4..8]))), Round(u64::from_be_bytes(first(&call[8..16]))));
        let meeting = Meeting { secret, address, room, nonces: [first(&call[16..]), nonce()?] };
        let mut answer = [0; ANSWER];
        answer[..NONCE].copy_from_slice(&meeting.nonces[1]);
        answer[NONCE..].copy_from_slice(&meeting.proof(Role::Host).finalize().into_bytes());
        Ok((Self(meeting), answer))
    }

    fn verify(self, proof: &[u8; PROOF]) -> io::Result<(TrialId, Round)> {
        let theirs = self.0.proof(Role::Caller).verify_slice(proof);
        theirs.map_err(|_| denied("it does not know the secret of the study"))?;
        Ok(self.0.room)
    }
}

/// Proves itself to the host at an address, and lets it prove itself.
pub(crate) async fn call(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    secret: &Secret,
    address: &str,
    room: (TrialId, Round),
) -> io::Result<()> {
    let (caller, call) = Caller::new(secret, address, room)?;
    stream.write_all(&call).await?;
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer).await?;
    stream.write_all(&caller.prove(&answer)?).await
}

/// As [`call`], for those without a runtime.
pub(crate) fn call_blocking(
    stream: &mut (impl io::Read + io::Write),
    secret: &Secret,
    address: &str,
    room: (TrialId, Round),
) -> io::Result<()> {
    let (caller, call) = Caller::new(secret, address, room)?;
    stream.write_all(&call)?;
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer)?;
    stream.write_all(&caller.prove(&answer)?)
}

/// The host's side of [`call`], at the address that it is known by: for which trial and round somebody comes. The caller limits the time.
pub(crate) async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    secret: &Secret,
    address: &str,
) -> io::Result<(TrialId, Round)> {
    let mut call = [0; CALL];
    stream.read_exact(&mut call).await?;
    let (host, answer) = Host::new(secret, address, &call)?;
    stream.write_all(&answer).await?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await?;
    host.verify(&proof)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: (TrialId, Round) = (TrialId(3), Round(7));

    fn secret() -> Secret {
        Secret::random().expect("random numbers")
    }

    /// Both sides with their own secrets and addresses.
    async fn meet(
        caller: (&Secret, &str),
        host: (&Secret, &str),
    ) -> (io::Result<()>, io::Result<(TrialId, Round)>) {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let calling = async {
            let result = call(&mut near, caller.0, caller.1, ROOM).await;
            drop(near);
            result
        };
        let answering = async {
            let result = answer(&mut far, host.0, host.1).await;
            drop(far);
            result
        };
        tokio::join!(calling, answering)
    }

    #[tokio::test]
    async fn who_knows_the_secret_gets_in_and_nobody_else() {
        let (ours, other) = (secret(), secret());
        let (called, answered) = meet((&ours, "a:1"), (&ours, "a:1")).await;
        assert!(called.is_ok());
        assert_eq!(answered.expect("they agree"), ROOM);
        for (caller, host) in [((&other, "a:1"), (&ours, "a:1")), ((&ours, "a:2"), (&ours, "a:1"))] {
            let (called, answered) = meet(caller, host).await;
            let called = called.expect_err("the host does not prove itself").to_string();
            assert!(called.contains("does not know the secret"), "{called}");
            assert!(answered.is_err());
        }
    }

    #[test]
    fn a_proof_is_good_once_and_for_one_round() {
        let ours = secret();
        let (caller, call) = Caller::new(&ours, "a:1", ROOM).expect("random numbers");
        let (host, answer) = Host::new(&ours, "a:1", &call).expect("it is a call");
        let proof = caller.prove(&answer).expect("the host is right");
        assert_eq!(host.verify(&proof).expect("so is the caller"), ROOM);
        let (again, _) = Host::new(&ours, "a:1", &call).expect("it is a call");
        assert!(again.verify(&proof).is_err(), "a recorded proof");
        let mut other_round = call;
        other_round[15] ^= 1;
        let (host, _) = Host::new(&ours, "a:1", &other_round).expect("it is a call");
        assert!(host.verify(&proof).is_err(), "another round");
        let (caller, call) = Caller::new(&ours, "a:1", ROOM).expect("random numbers");
        let (_, mut answer) = Host::new(&ours, "a:1", &call).expect("it is a call");
        answer[ANSWER - 1] ^= 1;
        assert!(caller.prove(&answer).is_err(), "a host that guesses");
        assert!(Host::new(&ours, "a:1", &[b'G'; CALL]).is_err(), "another protocol");
    }

    #[test]
    fn the_secret_is_never_sent() {
        let ours = secret();
        let (caller, call) = Caller::new(&ours, "a:1", ROOM).expect("random numbers");
        let (_, answer) = Host::new(&ours, "a:1", &call).expect("it is a call");
        let proof = caller.prove(&answer).expect("the host is right");
        let sent = [&call[..], &answer, &proof].concat();
        assert!(!sent.windows(8).any(|part| ours.reveal().as_bytes().starts_with(part)));
    }
}

//! Tests in several real processes: the test binary starts itself again, once for each rank.
//!
//! A test calls [`ranks`] or [`staged`] with its own name. In the process that `cargo test` started, that hosts a store and
//! starts the ranks; in a rank, it runs the body.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use c10d::{Backend, GroupOptions, Interface, ProcessGroup, Store};

use crate::machines::Machines;

/// After that long a rank hangs. Timeouts that a test expects are far shorter, those it must not need are longer.
const DEADLINE: Duration = Duration::from_secs(100);

/// For what must never be waited for.
pub(crate) const FOREVER: Duration = Duration::from_secs(3600);

/// For what comes sooner or later, also on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// What a rank says when it has done its part.
const DONE: &str = "done/";

/// A process of the test: which one, and the store that the first process hosts.
pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) store: Store,
    /// Where its peers reach it.
    pub(crate) host: IpAddr,
}

impl Member {
    /// If this process is a rank of a test, which must be the named one.
    fn of(test: &str) -> Option<Member> {
        assert_eq!(env::var("C10D_TEST").ok()?, test, "the name given is that of the test");
        tch::set_num_threads(1);
        let number = |name: &str| env::var(name).expect("it is set").parse().expect("a number");
        let address = env::var("C10D_STORE").expect("it is set");
        let store = Store::connect(&address, SOON).expect("the store is there");
        let host = env::var("C10D_HOST").expect("it is set").parse().expect("an address");
        Some(Member { rank: number("C10D_RANK"), size: number("C10D_SIZE"), store, host })
    }

    /// The group of all ranks, under a prefix of its own, with a timeout that no test lives to see.
    pub(crate) fn group(&self, prefix: &str) -> ProcessGroup {
        self.group_of(prefix, self.rank, self.size, FOREVER)
    }

    /// Forms a group, and returns when all ranks have it: a rank that fails on purpose might else disturb others.
    pub(crate) fn group_of(&self, prefix: &str, rank: usize, size: usize, timeout: Duration) -> ProcessGroup {
        let store = self.store.prefix(prefix).expect("a prefix");
        let group = ProcessGroup::form(&store, rank, size, &self.options(timeout)).expect("all ranks come");
        if self.store.add(&format!("{prefix}/count"), 1).expect("the store is there") == size as i64 {
            self.say(&format!("{prefix}/formed"));
        }
        self.hear(&format!("{prefix}/formed"));
        group
    }

    pub(crate) fn options(&self, timeout: Duration) -> GroupOptions {
        options_at(self.host, timeout)
    }

    /// Tells the others something.
    pub(crate) fn say(&self, key: &str) {
        self.store.set(key, b"").expect("the store is there");
    }

    /// Waits until somebody has said so.
    pub(crate) fn hear(&self, key: &str) {
        self.store.wait(&[key], SOON).expect("somebody says so");
    }
}

/// For a group whose ranks are all in this process, or on this machine.
pub(crate) fn options(timeout: Duration) -> GroupOptions {
    options_at(Ipv4Addr::LOCALHOST.into(), timeout)
}

fn options_at(host: IpAddr, timeout: Duration) -> GroupOptions {
    let backend = Backend::Gloo(Interface::Host(host.to_string()));
    GroupOptions { backend, connect_timeout: SOON, timeout, ..GroupOptions::default() }
}

/// The ranks of a test, seen from the process that started them.
pub(crate) struct World {
    pub(crate) store: Store,
    children: Vec<Child>,
}

impl World {
    fn start(test: &str, size: usize, machines: Option<&Machines>) -> World {
        let host = machines.map_or_else(|| Ipv4Addr::LOCALHOST.into(), |_| Machines::hub_address());
        let store = Store::host((host, 0)).expect("a free port");
        let program = env::current_exe().expect("it runs");
        let start = |rank: usize| {
            let (mut process, host) = match machines {
                None => (Command::new(&program), host),
                Some(machines) => (machines.command(rank, &program), Machines::address(rank)),
            };
            process
                .args([test, "--exact", "--nocapture", "--test-threads=1"])
                .env("C10D_TEST", test)
                .env("C10D_RANK", rank.to_string())
                .env("C10D_SIZE", size.to_string())
                .env("C10D_STORE", store.address())
                .env("C10D_HOST", host.to_string())
                // libtorch tells of each lost connection at length.
                .env("TORCH_CPP_LOG_LEVEL", "FATAL")
                .stdout(Stdio::null())
                .spawn()
                .expect("it runs again")
        };
        let children = (0..size).map(start).collect();
        World { store, children }
    }

    pub(crate) fn hear(&self, key: &str) {
        self.store.wait(&[key], SOON).expect("somebody says so");
    }

    pub(crate) fn say(&self, key: &str) {
        self.store.set(key, b"").expect("it is our store");
    }

    /// Ends a rank as `kill -9` does.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.children[rank].kill().expect("it was running");
    }

    /// Stops a rank as `kill -STOP` does, and returns when it stands still.
    pub(crate) fn stop(&self, rank: usize) {
        let id = self.children[rank].id().to_string();
        Command::new("kill").args(["-STOP", &id]).status().expect("there is a kill");
        let state = || {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("it was running");
            stat.rsplit(") ").next().expect("the last part is there").chars().next()
        };
        while state() != Some('T') {
            thread::yield_now();
        }
    }

    /// All ranks but the killed ones come to a good end.
    pub(crate) fn join(mut self, killed: &[usize]) {
        for rank in 0..self.children.len() {
            let (done, ended) = mpsc::channel();
            let mut child = self.children.remove(0);
            let id = child.id();
            thread::spawn(move || done.send(child.wait().expect("it is our child")));
            let status = ended.recv_timeout(DEADLINE).unwrap_or_else(|_| {
                let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
                panic!("rank {rank} hangs");
            });
            assert_eq!(status.success(), !killed.contains(&rank), "rank {rank}: {status}");
            // Else the test was not even run: its name is not the one given.
            let done = self.store.contains(&[&format!("{DONE}{rank}")]).expect("it is our store");
            assert_eq!(done, !killed.contains(&rank), "rank {rank}");
        }
    }
}

impl Drop for World {
    /// No rank outlives a failed test.
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the body in `size` processes.
pub(crate) fn ranks(test: &str, size: usize, body: impl FnOnce(&Member)) {
    staged(test, size, body, |world| world.join(&[]));
}

/// Runs the body in `size` processes, and the director in the one that `cargo test` started.
pub(crate) fn staged(test: &str, size: usize, body: impl FnOnce(&Member), director: impl FnOnce(World)) {
    if let Some(me) = Member::of(test) {
        body(&me);
        me.say(&format!("{DONE}{}", me.rank));
    } else {
        director(World::start(test, size, None));
    }
}

/// Runs the body in `size` processes, each on a machine of its own, and the director in the one that `cargo test` started.
pub(crate) fn on_machines(
    test: &str,
    size: u8,
    body: impl FnOnce(&Member),
    director: impl FnOnce(World, &Machines),
) {
    if let Some(me) = Member::of(test) {
        body(&me);
        me.say(&format!("{DONE}{}", me.rank));
    } else if let Some(machines) = Machines::new(size) {
        machines.enter(None);
        director(World::start(test, size.into(), Some(&machines)), &machines);
    }
}

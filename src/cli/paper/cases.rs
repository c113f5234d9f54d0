//! Which workloads are simulated for the tables: policies and settings, with what was published of them.

use crate::{
    alloc::{Cluster, Fairness, PolicyKind},
    sim::{self, Aim, Rules, Workload},
};

use super::{super::simulate::Error, ALL};

/// One line of a table: a policy in one setting, over some workloads.
pub(super) struct Case {
    pub(super) setting: String,
    /// The setting as a number, for drawings.
    pub(super) place: f64,
    /// Mean completion time in seconds as published, over all workloads.
    pub(super) published_s: Option<f64>,
    pub(super) jobs: Jobs,
    pub(super) world: sim::Settings,
}

/// Where the workloads of a case are from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Jobs {
    /// Those of a folder as they are.
    Of(&'static str),
    /// Drawn from those of load 1.0, with epochs that are declared wrong by a factor.
    Drawn { wrong: f64 },
}

impl Jobs {
    /// How many workloads there are.
    pub(super) fn count(self) -> usize {
        match self {
            Self::Of(folder) => Workload::builtin(folder).len().min(ALL),
            Self::Drawn { .. } => DRAWN,
        }
    }

    /// The workloads, all of them if `most` is as large as it can be.
    pub(super) fn workloads(self, most: usize) -> Result<Vec<Workload>, sim::Error> {
        let count = if most < ALL { most.min(self.count()) } else { self.count() };
        match self {
            Self::Of(folder) => Ok(Workload::builtin(folder).into_iter().take(count).collect()),
            Self::Drawn { wrong } => {
                let known = Workload::builtin(TUNED);
                (0..count).map(|seed| Workload::drawn(&known, seed as u64, wrong)).collect()
            }
        }
    }
}

/// How many workloads are drawn.
const DRAWN: usize = 10;

impl Case {
    pub(super) fn policy(&self) -> PolicyKind {
        self.world.policy
    }

    /// Whether another case is the same simulation.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.jobs == other.jobs && self.world == other.world
    }
}

const T4: &str = "16x4xt4";
const MIXED: &str = "6x4xt4,3x8xrtx2080ti,2x8xa100";
const TUNED: &str = "osdi21/load-1.0";
const REALISTIC: &str = "osdi21/realistic";

/// Of the authors' simulator: load, then Pollux, Optimus with an oracle, Tiresias.
const LOADS: [(&str, f64, [f64; 3]); 4] = [
    ("osdi21/load-0.5", 0.5, [1534.0, 2395.0, 2091.0]),
    ("osdi21/load-1.0", 1.0, [2751.0, 5682.0, 4038.0]),
    ("osdi21/load-1.5", 1.5, [3685.0, 7235.0, 6182.0]),
    ("osdi21/load-2.0", 2.0, [5289.0, 9721.0, 10_040.0]),
];
const INTERVALS: [(f64, f64); 5] =
    [(30.0, 2729.0), (60.0, 2751.0), (120.0, 2806.0), (240.0, 2969.0), (480.0, 3354.0)];
/// Without avoidance.
const INTERFERENCE: [(f64, f64); 3] = [(0.0, 2758.0), (0.25, 3177.0), (0.5, 3903.0)];
/// Table 2 of the paper, in hours: the exponent p of Pollux, and the others with tuned jobs and with those of users.
const EXPONENTS: [(f64, f64); 3] = [(-10.0, 0.84), (-1.0, 0.76), (1.0, 0.83)];
const TESTBED: [(PolicyKind, f64, f64); 2] =
    [(PolicyKind::Optimus, 1.5, 2.7), (PolicyKind::Tiresias, 1.2, 2.8)];
/// Sia's own table, in hours.
const SIA: [(&str, f64); 3] = [("sia/philly", 0.6), ("sia/saturn", 0.7), ("sia/newtrace", 0.7)];

fn world(policy: PolicyKind) -> Result<sim::Settings, Error> {
    Ok(sim::Settings::new(Cluster::parse(T4).map_err(Error::Setting)?, policy, Rules::Osdi21))
}

/// Policies by load.
pub(super) fn load() -> Result<Vec<Case>, Error> {
    use PolicyKind::{Goodput, Optimus, Pollux, Tiresias};
    let mut cases = Vec::new();
    for (folder, place, [pollux, optimus, tiresias]) in LOADS {
        let figures =
            [(Goodput, None), (Pollux, Some(pollux)), (Optimus, Some(optimus)), (Tiresias, Some(tiresias))];
        for (policy, published_s) in figures {
            cases.push(Case {
                setting: format!("{place:.1}"),
                place,
                published_s,
                jobs: Jobs::Of(folder),
                world: world(policy)?,
            });
        }
    }
    Ok(cases)
}

/// Table 2: the exponent p, and jobs as users would request them. What adapts does not look at requests.
pub(super) fn table2() -> Result<Vec<Case>, Error> {
    let case = |setting: &str, hours: Option<f64>, folder, world| Case {
        setting: setting.to_owned(),
        place: 0.0,
        published_s: hours.map(|hours| 3600.0 * hours),
        jobs: Jobs::Of(folder),
        world,
    };
    let mut cases = vec![case("any jobs", None, TUNED, world(PolicyKind::Goodput)?)];
    for (p, hours) in EXPONENTS {
        let aim = Aim::Speedup(Fairness::new(p).map_err(Error::Setting)?);
        let world = sim::Settings { aim, ..world(PolicyKind::Pollux)? };
        cases.push(Case { place: p, ..case(&format!("any jobs, p = {p}"), Some(hours), TUNED, world) });
    }
    for (policy, tuned, realistic) in TESTBED {
        cases.push(case("tuned jobs", Some(tuned), TUNED, world(policy)?));
        cases.push(case("realistic jobs", Some(realistic), REALISTIC, world(policy)?));
    }
    Ok(cases)
}

/// Workloads that nobody has chosen anything on: what `goodput` gains, and what it loses if users are wrong about their epochs. `pollux`
/// does not look at these.
pub(super) fn fresh() -> Result<Vec<Case>, Error> {
    let case = |setting: &str, wrong, world| {
        let (setting, jobs) = (setting.to_owned(), Jobs::Drawn { wrong });
        Case { setting, place: wrong, published_s: None, jobs, world }
    };
    Ok(vec![
        case("epochs as declared", 1.0, world(PolicyKind::Pollux)?),
        case("epochs as declared", 1.0, world(PolicyKind::Goodput)?),
        case("epochs wrong by a factor of 2", 2.0, world(PolicyKind::Goodput)?),
    ])
}

/// Seconds between two decisions.
pub(super) fn interval() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for (interval_s, published) in INTERVALS {
        for (policy, published_s) in [(PolicyKind::Goodput, None), (PolicyKind::Pollux, Some(published))] {
            let world = sim::Settings { interval_s, ..world(policy)? };
            let setting = format!("{interval_s} s");
            cases.push(Case { setting, place: interval_s, published_s, jobs: Jobs::Of(TUNED), world });
        }
    }
    Ok(cases)
}

/// How much distributed jobs on one node slow each other down, and whether that is avoided.
pub(super) fn interference() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    let known = INTERFERENCE.map(|(interference, published)| (interference, false, Some(published)));
    // Where it is avoided nobody is slowed down, so the strongest one shows it.
    for (interference, avoid_interference, published_s) in
        known.into_iter().chain([(0.0, true, None), (0.5, true, None)])
    {
        let avoided = if avoid_interference { "avoided" } else { "not avoided" };
        let setting = format!("{:.0} %, {avoided}", 100.0 * interference);
        let world = sim::Settings { interference, avoid_interference, ..world(PolicyKind::Pollux)? };
        cases.push(Case { setting, place: interference, published_s, jobs: Jobs::Of(TUNED), world });
    }
    Ok(cases)
}

/// Several GPU types, in the world of Sia.
pub(super) fn types() -> Result<Vec<Case>, Error> {
    let mut cases = Vec::new();
    for (folder, hours) in SIA {
        let cluster = Cluster::parse(MIXED).map_err(Error::Setting)?;
        let world = sim::Settings::new(cluster, PolicyKind::Goodput, Rules::Sosp23);
        let setting = folder.trim_start_matches("sia/").to_owned();
        let published_s = Some(3600.0 * hours);
        cases.push(Case { setting, place: 0.0, published_s, jobs: Jobs::Of(folder), world });
    }
    Ok(cases)
}

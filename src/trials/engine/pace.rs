//! How fast programs get ahead, by the number of their GPUs: what decides whether a restart with another number pays.
//!
//! Of a program nothing is known but what it reports: how far it is, and when. An epoch on `n` GPUs takes `serial + parallel / n` seconds,
//! Amdahl's law, with both fitted to what was seen. Trials of a study differ in speed, but hardly in how they scale: a trial that has
//! run on one number of GPUs only is taken to have the serial part of the others.

use std::collections::BTreeMap;

use crate::{
    alloc::Cluster,
    goodput::{self, Curve, GoodputTable},
    ids::GpuType,
};

/// What is believed of the part of an epoch that more GPUs do not make shorter, before anything was seen.
const SERIAL: f64 = 0.1;

/// What a program has reported of its progress.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pace {
    /// By type and number of GPUs: epochs, and the seconds in which they were made.
    measured: BTreeMap<(GpuType, u32), (f64, f64)>,
    /// The last report of the present start: when, and how far.
    last: Option<(f64, f64)>,
}

impl Pace {
    /// Takes note of a report by a program on some GPUs. Whether it is the first from which their speed is known.
    pub(super) fn report(&mut self, at_s: f64, epochs: f64, gpu_type: &GpuType, gpus: u32) -> bool {
        let Some((last_s, last_epochs)) = self.last.replace((at_s, epochs)) else { return false };
        if epochs <= last_epochs || at_s <= last_s {
            if epochs >= last_epochs {
                // The time counts, whatever it was for.
                self.last = Some((last_s, last_epochs));
            }
            return false;
        }
        let key = (gpu_type.clone(), gpus);
        let is_new = !self.measured.contains_key(&key);
        let (made, seconds) = self.measured.entry(key).or_default();
        (*made, *seconds) = (*made + epochs - last_epochs, *seconds + at_s - last_s);
        is_new
    }

    /// The program has ended: what comes next has nothing to do with its last report.
    pub(super) const fn end(&mut self) {
        self.last = None;
    }

    /// On how many kinds and numbers of GPUs its speed is known.
    pub(super) fn count(&self) -> usize {
        self.measured.len()
    }

    /// The largest number of GPUs of which the speed is known; 0 without any.
    pub(super) fn widest(&self) -> u32 {
        self.measured.keys().map(|(_, gpus)| *gpus).max().unwrap_or(0)
    }

    /// Numbers of GPUs of a type, and the seconds of an epoch with each.
    fn points(&self, gpu_type: &GpuType) -> Vec<(u32, f64)> {
        let of_type = self.measured.iter().filter(|((of, _), _)| of == gpu_type);
        of_type.map(|((_, gpus), (epochs, seconds))| (*gpus, seconds / epochs)).collect()
    }

    /// The part of an epoch on one GPU that does not become shorter, if the program has shown it.
    pub(super) fn serial(&self) -> Option<f64> {
        let types: std::collections::BTreeSet<&GpuType> = self.measured.keys().map(|(of, _)| of).collect();
        types.into_iter().find_map(|gpu_type| Scaling::fit(&self.points(gpu_type))).map(Scaling::serial)
    }

    /// What is expected on the types of GPU that it has used; on others it is taken to be as fast as on the first of them. None if
    /// nothing is known of it.
    pub(super) fn expect(&self, serial: Option<f64>) -> Option<PaceModel> {
        let serial = serial.unwrap_or(SERIAL);
        let mut of_type = BTreeMap::new();
        for (gpu_type, _) in self.measured.keys() {
            let points = self.points(gpu_type);
            let scaling = Scaling::fit(&points).or_else(|| Scaling::through(*points.first()?, serial))?;
            of_type.insert(gpu_type.clone(), scaling);
        }
        let usual = *of_type.values().next()?;
        Some(PaceModel { of_type, usual, widest: self.widest() })
    }
}

/// How long an epoch takes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scaling {
    serial_s: f64,
    parallel_s: f64,
}

impl Scaling {
    /// The line through points over `1 / n` with the least squares of relative errors, nowhere negative. None without two numbers of GPUs.
    fn fit(points: &[(u32, f64)]) -> Option<Self> {
        if points.len() < 2 {
            return None;
        }
        let (mut w, mut wx, mut wxx, mut wt, mut wxt) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for &(gpus, seconds) in points {
            let (x, weight) = (1.0 / f64::from(gpus), 1.0 / (seconds * seconds));
            w += weight;
            wx += weight * x;
            wxx += weight * x * x;
            wt += weight * seconds;
            wxt += weight * x * seconds;
        }
        let parallel_s = (w * wxt - wx * wt) / (w * wxx - wx * wx);
        let serial_s = (wt - parallel_s * wx) / w;
        let fitted = if parallel_s <= 0.0 {
            Self { serial_s: wt / w, parallel_s: 0.0 }
        } else if serial_s < 0.0 {
            Self { serial_s: 0.0, parallel_s: wxt / wxx }
        } else {
            Self { serial_s, parallel_s }
        };
        fitted.is_sane().then_some(fitted)
    }

    /// What one point tells, if the serial part of an epoch on one GPU is known.
    fn through((gpus, seconds): (u32, f64), serial: f64) -> Option<Self> {
        let one_s = seconds / (serial + (1.0 - serial) / f64::from(gpus));
        let scaling = Self { serial_s: serial * one_s, parallel_s: (1.0 - serial) * one_s };
        scaling.is_sane().then_some(scaling)
    }

    fn is_sane(self) -> bool {
        let seconds = self.serial_s + self.parallel_s;
        seconds.is_finite() && seconds > 0.0
    }

    fn serial(self) -> f64 {
        self.serial_s / (self.serial_s + self.parallel_s)
    }

    /// Epochs per second.
    fn speed(self, gpus: u32) -> f64 {
        1.0 / (self.serial_s + self.parallel_s / f64::from(gpus))
    }
}

/// What is expected of a program on other numbers of GPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceModel {
    of_type: BTreeMap<GpuType, Scaling>,
    usual: Scaling,
    widest: u32,
}

impl PaceModel {
    /// What is expected of a program that has reported nothing, by the others of its study: how it scales, if not how fast it is.
    pub(super) fn of_study(serial: f64, widest: u32) -> Option<Self> {
        let usual = Scaling::through((1, 1.0), serial)?;
        (widest > 0).then(|| Self { of_type: BTreeMap::new(), usual, widest })
    }

    /// The most GPUs that it may have now: nobody goes further than twice of what was tried.
    pub(super) const fn cap(&self) -> u32 {
        self.widest.saturating_mul(2)
    }

    /// Its speed on the GPUs of a cluster, on one node.
    pub(super) fn table(&self, cluster: &Cluster, cap: u32) -> Result<GoodputTable, goodput::Error> {
        one_node(cluster, cap, |gpu_type, gpus| {
            self.of_type.get(gpu_type).copied().unwrap_or(self.usual).speed(gpus)
        })
    }
}

/// The speed of a program that cannot leave its node.
pub(super) fn one_node(
    cluster: &Cluster,
    cap: u32,
    speed: impl Fn(&GpuType, u32) -> f64,
) -> Result<GoodputTable, goodput::Error> {
    let mut table = GoodputTable::new();
    for (gpu_type, node, gpus) in cluster.room(cap) {
        let curve = Curve::build(gpus.min(node), node, |shape| {
            if shape.nodes() == 1 { speed(&gpu_type, shape.gpus()) } else { 0.0 }
        })?;
        table.insert(gpu_type, curve);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t4() -> GpuType {
        GpuType::new("t4").expect("a name")
    }

    /// A program that has made five epochs on each of these numbers of GPUs, in so many seconds each.
    fn pace(measured: &[(u32, f64)]) -> Pace {
        let mut pace = Pace::default();
        let (mut at_s, mut epochs) = (0.0, 0.0);
        for &(gpus, seconds) in measured {
            at_s += 1000.0;
            for report in 0..6 {
                assert_eq!(pace.report(at_s, epochs, &t4(), gpus), report == 1);
                (at_s, epochs) = (at_s + seconds, epochs + 1.0);
            }
            pace.end();
        }
        pace
    }

    fn speeds(model: &PaceModel, cap: u32) -> Vec<f64> {
        let cluster = Cluster::parse("2x4xt4").expect("a cluster");
        let table = model.table(&cluster, cap).expect("a table");
        (1..=8).map(|gpus| table[&t4()].at(goodput::Tier::Local, gpus)).collect()
    }

    #[test]
    fn pauses_do_not_count_and_standing_still_does() {
        let mut pace = pace(&[(1, 10.0)]);
        assert_eq!(pace.points(&t4()), [(1, 10.0)]);
        assert!(!pace.report(0.0, 5.0, &t4(), 1));
        assert!(!pace.report(10.0, 5.0, &t4(), 1), "it stands still");
        pace.report(20.0, 6.0, &t4(), 1);
        assert_eq!(pace.points(&t4()), [(1, 70.0 / 6.0)]);
        // It has begun at an earlier epoch again.
        pace.report(30.0, 1.0, &t4(), 1);
        pace.report(40.0, 2.0, &t4(), 1);
        assert_eq!(pace.points(&t4()), [(1, 80.0 / 7.0)]);
    }

    #[test]
    fn two_numbers_of_gpus_show_how_it_scales() {
        // 2 s serial, 8 s that become shorter.
        let model = pace(&[(1, 10.0), (2, 6.0)]).expect(None).expect("it is known");
        let expected = [10.0, 6.0, 2.0 + 8.0 / 3.0, 4.0].map(|seconds: f64| 1.0 / seconds);
        for (speed, expected) in speeds(&model, 8).into_iter().zip(expected) {
            assert!((speed - expected).abs() < 1e-9, "{speed} {expected}");
        }
        assert!((pace(&[(1, 10.0), (2, 6.0)]).serial().expect("it has shown it") - 0.2).abs() < 1e-9);
        assert_eq!(model.cap(), 4);
    }

    #[test]
    fn more_gpus_never_look_worse_than_they_can_be() {
        // Faster than twice as fast, and slower than before.
        let better = pace(&[(1, 10.0), (2, 4.0)]).expect(None).expect("it is known");
        let worse = pace(&[(1, 10.0), (2, 12.0)]).expect(None).expect("it is known");
        let (better, worse) = (speeds(&better, 4), speeds(&worse, 4));
        assert!((better[3] / better[0] - 4.0).abs() < 1e-9, "{better:?}");
        assert!((worse[3] / worse[0] - 1.0).abs() < 1e-9, "{worse:?}");
    }

    #[test]
    fn one_number_of_gpus_is_completed_by_what_others_have_shown() {
        let model = pace(&[(2, 6.0)]).expect(Some(0.2)).expect("it is known");
        assert!((speeds(&model, 4)[0] - 0.1).abs() < 1e-9);
        assert_eq!(Pace::default().expect(Some(0.2)), None);
        let fresh = PaceModel::of_study(0.2, 2).expect("others are known");
        let speeds = speeds(&fresh, 4);
        assert!((speeds[3] / speeds[0] - 2.5).abs() < 1e-9, "{speeds:?}");
        assert_eq!(PaceModel::of_study(0.2, 0), None);
    }

    #[test]
    fn a_program_stays_on_one_node() {
        let model = pace(&[(4, 6.0)]).expect(None).expect("it is known");
        assert_eq!(speeds(&model, 8)[4..], [0.0; 4], "a node has four");
        let cluster = Cluster::parse("2x4xt4").expect("a cluster");
        let table = model.table(&cluster, 8).expect("a table");
        assert!((1..=8).all(|gpus| table[&t4()].at(goodput::Tier::Node, gpus) == 0.0));
    }
}

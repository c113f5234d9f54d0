//! What elastic training costs: pauses, steps against PyTorch's `DistributedDataParallel`, and the noise scale.
//!
//! ```sh
//! make bench-elastic
//! ```

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints and may end with a panic")]

#[path = "../../tests/support/processes.rs"]
mod processes;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, exit},
    time::Duration,
};

use pollux_tune::{
    actors::{Training, TrainingEvent, TrainingSettings},
    ids::{StudyId, TrialId},
    space::Params,
    trials::group::{Pause, Task},
    worker::{
        BoxError, Dataset, Example, Optimizer, Registry, Schedule, Slot, Trainable, builtin::resnet18,
        serve_if_worker,
    },
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tch::{Device, Kind, Tensor, nn, nn::ModuleT};

use self::processes::children;

const SOON: Duration = Duration::from_secs(300);
/// Rounds of each comparison, if the command line does not say; medians are told.
const ROUNDS: usize = 5;
/// The first one is not counted. The rest are three times those of which one or two are measured for the noise scale.
const STEPS: u32 = 25;
const CYCLE: usize = 8;
const EXAMPLES: u32 = 4096;

struct Net {
    network: nn::SequentialT,
}

/// The same images again and again: nothing to load, so that steps are all there is.
struct Same {
    images: Tensor,
    labels: Tensor,
}

impl Dataset for Same {
    fn len(&self) -> u32 {
        EXAMPLES
    }

    fn load(&mut self, examples: &[Example]) -> Result<Vec<Tensor>, BoxError> {
        let count = i64::try_from(examples.len())?;
        Ok(vec![self.images.narrow(0, 0, count), self.labels.narrow(0, 0, count)])
    }
}

impl Trainable for Net {
    fn optimizer(&self) -> Optimizer {
        Optimizer::sgd().momentum(0.9).weight_decay(5e-4)
    }

    fn learning_rate(&self, _: Schedule) -> f64 {
        0.01
    }

    fn training_data(&self) -> Result<Box<dyn Dataset>, BoxError> {
        let images = Tensor::randn([512, 3, 32, 32], (Kind::Float, Device::Cpu));
        Ok(Box::new(Same { images, labels: Tensor::zeros([512], (Kind::Int64, Device::Cpu)) }))
    }

    fn loss(&self, batch: &[Tensor]) -> Result<Tensor, BoxError> {
        Ok(self.network.forward_t(&batch[0], true).cross_entropy_for_logits(&batch[1]))
    }
}

fn registry() -> Registry {
    Registry::default().with("net", |root: &nn::Path, params: &Params| {
        Ok(Net { network: resnet18(root, params.int("width")?, 10) })
    })
}

struct Bench {
    folder: PathBuf,
    trainings: u32,
    rounds: usize,
}

impl Bench {
    fn start(&mut self, width: i64, batch: u32, steps: u32, slots: &[u32], measure_noise: bool) -> Training {
        self.trainings += 1;
        let serde_json::Value::Object(params) = json!({"width": width}) else { unreachable!() };
        let task = Task {
            study: StudyId(1),
            trial: TrialId(0),
            trainable: "net".to_owned(),
            params,
            seed: 1,
            epochs: f64::from(steps) * f64::from(batch) / f64::from(EXAMPLES),
            initial_batch: batch,
            lr_rule: "none".to_owned(),
            checkpoint: self.folder.join(format!("checkpoint-{}", self.trainings)),
            checkpoint_every_s: 1e6,
            report_every_s: 1e-3,
            evaluate_every: 1e6,
            measure_noise,
            mixed_precision: false,
        };
        let settings = TrainingSettings {
            slots: vec![Slot { threads: 1, cuda: None }; 2],
            start: slots.to_vec(),
            max_batch: None,
            max_batch_per_worker: 4096,
            worker_arguments: Vec::new(),
            python: None,
            silence: None,
        };
        Training::start(vec![task], &settings).unwrap()
    }

    /// What a step takes.
    fn step(&mut self, width: i64, per_worker: u32, slots: &[u32], measure_noise: bool) -> Step {
        let mut training = self.start(width, per_worker * slots.len() as u32, STEPS, slots, measure_noise);
        let pid = worker_of(slots[0]);
        let (mut times, mut began, mut ended) = (Vec::new(), None, None);
        loop {
            match training.next(SOON).unwrap().unwrap() {
                TrainingEvent::Reported(report) => {
                    times.extend(report.step_times.iter().map(|times| times.iter_time_s));
                    // After the last step it may be gone already.
                    let Some(cpu_s) = cpu_s(pid) else { continue };
                    let now = (report.steps, cpu_s);
                    began = began.or(Some(now));
                    ended = ended.filter(|(steps, _)| *steps == report.steps).or(Some(now));
                }
                TrainingEvent::Finished { .. } => break,
                TrainingEvent::Failed { reason } => panic!("{reason}"),
                _ => {}
            }
        }
        let ((first, began), (last, ended)) = (began.unwrap(), ended.unwrap());
        Step { wall_s: cycle(&times), cpu_s: (ended - began) / (last - first) as f64 }
    }

    /// The pauses of one training that is reshaped and loses a worker, again and again.
    fn pauses(&mut self, width: i64, batch: u32, rounds: usize) -> [Vec<Pause>; 4] {
        let mut training = self.start(width, batch, 1_000_000, &[0], true);
        let mut kinds = [const { Vec::new() }; 4];
        await_settled(&mut training);
        for _ in 0..rounds {
            for (kind, slots) in [(0, &[0, 1][..]), (1, &[0]), (2, &[1]), (0, &[1, 0])] {
                await_reports(&mut training, 3);
                training.rescale(slots).unwrap();
                kinds[kind].push(await_settled(&mut training));
            }
            await_reports(&mut training, 3);
            kill_process(worker_of(0), Signal::KILL).unwrap();
            // The survivor alone; then the replacement joins, which is a growth.
            kinds[3].push(await_formed(&mut training, 1));
            kinds[0].push(await_formed(&mut training, 2));
            await_reports(&mut training, 3);
            training.rescale(&[0]).unwrap();
            await_settled(&mut training);
        }
        kinds
    }
}

fn await_settled(training: &mut Training) -> Pause {
    loop {
        match training.next(SOON).unwrap().unwrap() {
            TrainingEvent::Formed { pause, .. } if training.is_settled() => return pause,
            TrainingEvent::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

fn await_formed(training: &mut Training, workers: usize) -> Pause {
    loop {
        match training.next(SOON).unwrap().unwrap() {
            TrainingEvent::Formed { pause, slots, .. } if slots.len() == workers => return pause,
            TrainingEvent::Failed { reason } => panic!("{reason}"),
            _ => {}
        }
    }
}

fn await_reports(training: &mut Training, count: usize) {
    let mut seen = 0;
    while seen < count {
        if let TrainingEvent::Reported(_) = training.next(SOON).unwrap().unwrap() {
            seen += 1;
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What a step takes: by the clock, robustly, and of the first rank's CPU, on average. The latter can be compared on a busy machine, too.
#[derive(Clone, Copy)]
struct Step {
    wall_s: f64,
    cpu_s: f64,
}

/// The mean time of a step, from the medians of those that do the same.
fn cycle(times: &[f64]) -> f64 {
    let alike = |at: usize| {
        let mut times: Vec<f64> = times.iter().copied().skip(at).step_by(CYCLE).collect();
        median(&mut times)
    };
    (0..CYCLE).map(alike).sum::<f64>() / CYCLE as f64
}

/// The worker process on a slot.
fn worker_of(slot: u32) -> Pid {
    let variable = format!("POLLUX_TUNE_WORKER_NODE={slot}");
    let is_it = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
    };
    children(std::process::id()).into_iter().find(is_it).unwrap()
}

/// Seconds of CPU time that a process has used, in its own code and in the system; none if it has ended.
fn cpu_s(pid: Pid) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // After the name, which is in brackets: a state, then numbers, in hundredths of a second where it matters.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    Some(fields.skip(11).take(2).map(|field| field.parse::<f64>().unwrap() / 100.0).sum())
}

/// What a step of PyTorch's takes.
fn peer(python: &Path, width: i64, per_worker: u32, workers: usize) -> Step {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/elastic/peer.py");
    let numbers = [width.to_string(), per_worker.to_string(), workers.to_string(), STEPS.to_string()];
    let run = || Command::new(python).arg(&script).args(&numbers).output().unwrap();
    // Now and then a rank of its aborts at its end: once more will do.
    let output = Some(run()).filter(|output| output.status.success()).unwrap_or_else(run);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8_lossy(&output.stdout);
    let (wall, cpu) = output.trim().split_once(' ').unwrap();
    Step { wall_s: wall.parse().unwrap(), cpu_s: cpu.parse().unwrap() }
}

fn main() {
    serve_if_worker(&registry());
    let Some(python) = env::args().skip(1).find(|argument| !argument.starts_with("--")) else {
        println!(
            "usage: elastic PYTHON [--rounds=N] [--width=16|64], with a PYTHON that has torch; see `make bench-elastic`"
        );
        exit(2);
    };
    let number =
        |name: &str| env::args().find_map(|argument| argument.strip_prefix(name)?.parse::<i64>().ok());
    let widths: Vec<i64> = number("--width=").map_or_else(|| vec![16, 64], |width| vec![width]);
    let rounds = number("--rounds=").and_then(|rounds| usize::try_from(rounds).ok()).unwrap_or(ROUNDS);
    let folder = env::temp_dir().join(format!("pollux-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut bench = Bench { folder: folder.clone(), trainings: 0, rounds };
    print_steps(&mut bench, Path::new(&python), &widths);
    print_pauses(&mut bench, &widths);
    drop(bench);
    let _ = fs::remove_dir_all(folder);
}

fn print_steps(bench: &mut Bench, python: &Path, widths: &[i64]) {
    println!(
        "| width | batch of a worker | workers | ours | PyTorch DDP | ours / DDP | without noise scale | its cost \
         | CPU: ours / DDP | CPU: its cost |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (width, per_worker) in widths.iter().map(|&width| (width, if width < 64 { 64 } else { 16 })) {
        for slots in [&[0][..], &[0, 1]] {
            let rounds: Vec<[Step; 3]> = (0..bench.rounds)
                .map(|_| {
                    let ours = bench.step(width, per_worker, slots, true);
                    let theirs = peer(python, width, per_worker, slots.len());
                    [ours, theirs, bench.step(width, per_worker, slots, false)]
                })
                .collect();
            let middle =
                |of: &dyn Fn(&[Step; 3]) -> f64| median(&mut rounds.iter().map(of).collect::<Vec<_>>());
            let ms = |at: usize| 1000.0 * middle(&|round| round[at].wall_s);
            let wall = |at: usize| middle(&|round| round[0].wall_s / round[at].wall_s);
            let cpu = |at: usize| middle(&|round| round[0].cpu_s / round[at].cpu_s);
            let percent = |ratio: f64| 100.0 * (ratio - 1.0);
            println!(
                "| {width} | {per_worker} | {} | {:.0} ms | {:.0} ms | {:.3} | {:.0} ms | {:.1} % | {:.3} | {:.1} % |",
                slots.len(),
                ms(0),
                ms(1),
                wall(1),
                ms(2),
                percent(wall(2)),
                cpu(1),
                percent(cpu(2))
            );
        }
    }
}

fn print_pauses(bench: &mut Bench, widths: &[i64]) {
    println!("\n| width | what happens | times | pause | of it forming | of it hand-over | longest pause |");
    println!("|---|---|---|---|---|---|---|");
    for &width in widths {
        let kinds = bench.pauses(width, 4, bench.rounds);
        for (what, pauses) in ["growth", "shrink", "migration", "a worker killed"].into_iter().zip(kinds) {
            let of = |part: fn(&Pause) -> f64| {
                let mut values: Vec<f64> = pauses.iter().map(part).collect();
                let middle = median(&mut values) * 1000.0;
                (middle, values.last().copied().unwrap_or_default() * 1000.0)
            };
            let (pause, longest) = of(|pause| pause.total_s);
            let (form, _) = of(|pause| pause.form_s);
            let (hand_over, _) = of(|pause| pause.hand_over_s);
            let times = pauses.len();
            println!(
                "| {width} | {what} | {times} | {pause:.0} ms | {form:.0} ms | {hand_over:.0} ms | {longest:.0} ms |"
            );
        }
    }
}

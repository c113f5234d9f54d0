//! Measures groups on this machine, with real processes: `make bench-c10d`.
//!
//! Prints medians over several rounds, as rank 0 sees them: the time to form a group, to reduce 4 MB, to notice a death, and to
//! form the next group without the dead rank.

#![expect(clippy::print_stdout, reason = "a program that reports")]

use std::{
    env,
    error::Error,
    process::{self, Child, Command},
    time::{Duration, Instant},
};

use c10d::{Backend, GroupOptions, Interface, ProcessGroup, ReduceOp, Store};
use tch::{Device, Kind, Tensor};

type Outcome<T> = Result<T, Box<dyn Error>>;

const ROUNDS: usize = 15;
const REDUCTIONS: usize = 100;
const SOON: Duration = Duration::from_secs(60);

fn main() -> Outcome<()> {
    if env::var_os("MEASURE_RANK").is_some() {
        return rank();
    }
    println!("ranks  form ms  reduce 4 MB ms  GB/s  notice death ms  re-form ms");
    for size in [2, 3, 4] {
        let mut rounds: [Vec<f64>; 4] = Default::default();
        for _ in 0..ROUNDS {
            for (all, one) in rounds.iter_mut().zip(round(size)?) {
                all.push(one);
            }
        }
        let [form, reduce, notice, reform] = rounds.map(median);
        let rate = f64::from(4 << 20) / 1e6 / reduce;
        println!("{size:>5}  {form:>7.1}  {reduce:>14.2}  {rate:>4.2}  {notice:>15.1}  {reform:>10.1}");
    }
    Ok(())
}

/// Starts ranks, of which the last dies, and asks rank 0 for its times.
fn round(size: usize) -> Outcome<[f64; 4]> {
    let store = Store::host("127.0.0.1:0")?;
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe()?);
        command.env("MEASURE_RANK", rank.to_string()).env("MEASURE_SIZE", size.to_string());
        command.env("MEASURE_STORE", store.address()).env("TORCH_CPP_LOG_LEVEL", "FATAL").spawn()
    };
    let mut ranks = (0..size).map(start).collect::<Result<Vec<Child>, _>>()?;
    for (rank, child) in ranks.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() && rank + 1 < size {
            return Err(format!("rank {rank}: {status}").into());
        }
    }
    let times = String::from_utf8(store.get("times", SOON)?)?;
    let times: Vec<f64> = times.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    Ok(times.try_into().map_err(|_| "rank 0 reports four times")?)
}

fn rank() -> Outcome<()> {
    let number = |name: &str| -> Outcome<usize> { Ok(env::var(name)?.parse()?) };
    let (rank, size) = (number("MEASURE_RANK")?, number("MEASURE_SIZE")?);
    tch::set_num_threads(1);
    let store = Store::connect(&env::var("MEASURE_STORE")?, SOON)?;
    let backend = Backend::Gloo(Interface::Host("127.0.0.1".to_owned()));
    let options = GroupOptions { backend, ..GroupOptions::default() };

    meet(&store, "start", size)?;
    let (group, form) = timed(|| ProcessGroup::form(&store.prefix("gen0")?, rank, size, &options))?;
    let mut tensor = Tensor::ones([1 << 20], (Kind::Float, Device::Cpu));
    group.all_reduce(&mut tensor, ReduceOp::Avg)?;
    let ((), reductions) =
        timed(|| (0..REDUCTIONS).try_for_each(|_| group.all_reduce(&mut tensor, ReduceOp::Avg)))?;

    if rank + 1 == size {
        // Falls dead while the others wait for it.
        store.set("death", b"")?;
        process::abort();
    }
    store.wait(&["death"], SOON)?;
    let (failed, notice) = timed(|| Ok(group.all_reduce(&mut tensor, ReduceOp::Avg)))?;
    if failed.is_ok() {
        return Err("the group works without the dead rank".into());
    }
    drop(group);
    meet(&store, "again", size - 1)?;
    let (group, reform) = timed(|| ProcessGroup::form(&store.prefix("gen1")?, rank, size - 1, &options))?;
    if rank == 0 {
        store.set(
            "times",
            format!("{form} {} {notice} {reform}", reductions / REDUCTIONS as f64).as_bytes(),
        )?;
    }
    Ok(group.leave()?)
}

/// Waits until `size` ranks are here.
fn meet(store: &Store, place: &str, size: usize) -> Outcome<()> {
    let here = store.add(&format!("{place}/count"), 1)?;
    if usize::try_from(here)? == size {
        store.set(place, b"")?;
    }
    Ok(store.wait(&[place], SOON)?)
}

/// The result, and how many milliseconds it took.
fn timed<T>(body: impl FnOnce() -> c10d::Result<T>) -> Outcome<(T, f64)> {
    let start = Instant::now();
    let value = body()?;
    Ok((value, start.elapsed().as_secs_f64() * 1e3))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

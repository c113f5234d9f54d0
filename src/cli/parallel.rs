//! Work for several threads.

use std::{
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Does all jobs on some threads; the results are in the order of the jobs. Says from time to time how many are done.
pub(crate) fn in_parallel<J: Sync, R: Send>(
    jobs: &[J],
    threads: usize,
    stderr: &mut (impl Write + Send),
    work: impl Fn(&J) -> R + Sync,
) -> Vec<R> {
    let results = jobs.iter().map(|_| None).collect::<Vec<Option<R>>>();
    let (next, done) = (AtomicUsize::new(0), Mutex::new((results, 0, stderr)));
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some((place, job)) = take(jobs, &next) {
                    let result = work(job);
                    let mut done = done.lock().expect("no thread panics while it holds this");
                    done.0[place] = Some(result);
                    done.1 += 1;
                    if done.1 % 10 == 0 {
                        let text = format!("{} of {} simulations done", done.1, jobs.len());
                        // The results do not depend on it.
                        let _ = writeln!(done.2, "{text}");
                    }
                }
            });
        }
    });
    let (results, ..) = done.into_inner().expect("all threads have ended well");
    results.into_iter().flatten().collect()
}

fn take<'a, J>(jobs: &'a [J], next: &AtomicUsize) -> Option<(usize, &'a J)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    Some((place, jobs.get(place)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..25).collect();
        for threads in [0, 1, 4] {
            let mut stderr = Vec::new();
            let squares = in_parallel(&jobs, threads, &mut stderr, |job| job * job);
            assert_eq!(squares, jobs.iter().map(|job| job * job).collect::<Vec<_>>());
            assert_eq!(String::from_utf8(stderr).unwrap().lines().last(), Some("20 of 25 simulations done"));
        }
    }
}

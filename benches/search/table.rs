//! Medians side by side, with a test whether they differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
};

use serde_json::Value;

/// The one that all others are compared to.
const OURS: &str = "pollux-tune";
/// Below this probability of an accident a difference counts.
const SIGNIFICANT: f64 = 0.05;

/// Function, workers, trials.
type Setting = (String, usize, usize);

/// The regrets of all seeds by setting and by optimizer.
#[derive(Default)]
pub(crate) struct Runs {
    /// In the order of their first appearance.
    optimizers: Vec<String>,
    functions: Vec<String>,
    regrets: BTreeMap<(Setting, String), Vec<f64>>,
}

impl Runs {
    /// Adds what `peers.py` wrote.
    pub(crate) fn read(&mut self, lines: &str) -> Result<(), Box<dyn Error>> {
        for line in lines.lines() {
            let row: Value = serde_json::from_str(line)?;
            let text = |key: &str| row[key].as_str().ok_or_else(|| format!("no `{key}` in {line}"));
            let number = |key: &str| row[key].as_u64().ok_or_else(|| format!("no `{key}` in {line}"));
            let regrets = row["regrets"].as_array().ok_or_else(|| format!("no `regrets` in {line}"))?;
            let regrets = regrets.iter().filter_map(Value::as_f64).collect();
            let (workers, trials) = (number("workers")? as usize, number("trials")? as usize);
            self.add(text("peer")?, text("function")?, workers, trials, regrets);
        }
        Ok(())
    }

    pub(crate) fn add(
        &mut self,
        name: &str,
        function: &str,
        workers: usize,
        trials: usize,
        regrets: Vec<f64>,
    ) {
        for (list, entry) in [(&mut self.optimizers, name), (&mut self.functions, function)] {
            if !list.iter().any(|known| known == entry) {
                list.push(entry.to_owned());
            }
        }
        self.regrets.insert(((function.to_owned(), workers, trials), name.to_owned()), regrets);
    }

    /// Takes some functions out.
    pub(crate) fn split_off(&mut self, taken: impl Fn(&str) -> bool) -> Self {
        let mut other = Self::default();
        for ((setting, name), regrets) in std::mem::take(&mut self.regrets) {
            let runs = if taken(&setting.0) { &mut other } else { &mut *self };
            runs.add(&name, &setting.0, setting.1, setting.2, regrets);
        }
        for runs in [self, &mut other] {
            let known: BTreeSet<&String> = runs.regrets.keys().map(|(_, name)| name).collect();
            runs.optimizers.retain(|name| known.contains(name));
            let known: BTreeSet<&String> = runs.regrets.keys().map(|((function, ..), _)| function).collect();
            runs.functions.retain(|function| known.contains(function));
        }
        other
    }

    /// Ours first.
    fn columns(&self) -> Vec<&String> {
        let mut columns: Vec<&String> = self.optimizers.iter().collect();
        columns.sort_by_key(|name| (*name != OURS, name.starts_with("our ")));
        columns
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings: Vec<Setting> = self.regrets.keys().map(|(setting, _)| setting.clone()).collect();
        let place = |function: &String| self.functions.iter().position(|known| known == function);
        settings.sort_by_key(|(function, workers, trials)| (*trials, *workers, place(function)));
        settings.dedup();
        settings
    }
}

/// Prints one row for each setting, and how often ours was better or worse.
pub(crate) fn print(what: &str, runs: &Runs) {
    let columns = runs.columns();
    let mut tally: BTreeMap<&str, [u32; 3]> = BTreeMap::new();
    println!("\n{what}; `+` where {OURS} is significantly better, `-` where it is worse.\n");
    let names: Vec<&str> = columns.iter().map(|name| name.as_str()).collect();
    println!("| trials | workers | function | {} |", names.join(" | "));
    println!("|---|---|---|{}", "---|".repeat(columns.len()));
    for setting in runs.settings() {
        let regrets = |name: &str| runs.regrets.get(&(setting.clone(), name.to_owned()));
        let cells = columns.iter().map(|name| match (regrets(OURS), regrets(name)) {
            (Some(ours), Some(theirs)) if name.as_str() != OURS => {
                let verdict = compare(ours, theirs);
                tally.entry(name.as_str()).or_default()[verdict as usize] += 1;
                format!("{}{}", short(median(theirs)), ["", " +", " -"][verdict as usize])
            }
            (_, Some(regrets)) => short(median(regrets)),
            (_, None) => String::new(),
        });
        let cells: Vec<String> = cells.collect();
        println!("| {} | {} | {} | {} |", setting.2, setting.1, setting.0, cells.join(" | "));
    }
    println!();
    for (name, [same, better, worse]) in tally {
        println!("- {OURS} against {name}: {better} times better, {same} the same, {worse} worse");
    }
}

#[derive(Clone, Copy)]
enum Verdict {
    Same,
    Better,
    Worse,
}

fn compare(ours: &[f64], theirs: &[f64]) -> Verdict {
    let z = mann_whitney(ours, theirs);
    let p = libm::erfc(z.abs() / std::f64::consts::SQRT_2);
    match (p < SIGNIFICANT, z < 0.0) {
        (false, _) => Verdict::Same,
        (true, true) => Verdict::Better,
        (true, false) => Verdict::Worse,
    }
}

/// The statistic of the Mann-Whitney test in standard deviations, ties taken into account; negative if the first
/// sample is smaller.
fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|&x| (x, true)).chain(b.iter().map(|&x| (x, false))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let (n, m, total) = (a.len() as f64, b.len() as f64, all.len() as f64);
    let (mut ranks, mut ties, mut before) = (0.0, 0.0, 0.0);
    for group in all.chunk_by(|x, y| x.0.total_cmp(&y.0).is_eq()) {
        let size = group.len() as f64;
        let of_first = group.iter().filter(|(_, first)| *first).count() as f64;
        ranks += of_first * (before + f64::midpoint(size, 1.0));
        ties += size * size * size - size;
        before += size;
    }
    let u = ranks - n * (n + 1.0) / 2.0;
    let variance = n * m / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    if variance > 0.0 { (u - n * m / 2.0) / variance.sqrt() } else { 0.0 }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2])
}

fn short(value: f64) -> String {
    match value {
        v if v.abs() < 5e-5 => "0.0000".to_owned(),
        v if v < 0.01 => format!("{v:.4}"),
        v if v < 1.0 => format!("{v:.3}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

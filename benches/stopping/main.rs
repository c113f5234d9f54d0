//! Early stopping on measured learning curves, at equal GPU time.
//!
//! `make bench-stopping` prints the tables of `docs/search.md`, and with `-- --startup` only those of shorter starts of `gp`. Each study with a rule has a twin without: the same seed, the same
//! budget, and with random search the same configurations in the same order.

#![expect(clippy::print_stdout, reason = "the tables are its output")]

mod freeze;
mod replay;

use std::{cmp::Ordering, collections::BTreeSet, env, error::Error};

use pollux_tune::{
    space::{Dims, EarlyStopping, StoppingRule, Study},
    tpe::{Gp, Suggester},
};
use replay::{Choice, Conditions, Table, families, study, tables};

/// In full trainings.
const BUDGETS: [f64; 4] = [5.0, 10.0, 20.0, 50.0];
const SEEDS: u64 = 200;
/// Two-sided, of the sign test.
const SIGNIFICANT: f64 = 0.05;
const CALM: Conditions = Conditions { choice: Choice::Random, workers: 1, reports: usize::MAX };

/// Grace as a share of the epochs of a trial.
type Candidate = (StoppingRule, f64, f64);

const NONE: Candidate = (StoppingRule::Never, 0.5, 2.0);
const CANDIDATES: [Candidate; 19] = [
    (StoppingRule::Asha, 1.0 / 32.0, 1.25),
    (StoppingRule::Asha, 1.0 / 16.0, 1.25),
    (StoppingRule::Asha, 1.0 / 8.0, 1.25),
    (StoppingRule::Asha, 1.0 / 4.0, 1.25),
    (StoppingRule::Asha, 1.0 / 16.0, 1.5),
    (StoppingRule::Asha, 1.0 / 8.0, 1.5),
    (StoppingRule::Asha, 1.0 / 16.0, 2.0),
    (StoppingRule::Asha, 1.0 / 8.0, 2.0),
    (StoppingRule::Asha, 1.0 / 4.0, 2.0),
    (StoppingRule::Asha, 1.0 / 20.0, 3.0),
    (StoppingRule::Asha, 1.0 / 16.0, 3.0),
    (StoppingRule::Asha, 1.0 / 4.0, 3.0),
    (StoppingRule::Asha, 1.0 / 16.0, 4.0),
    (StoppingRule::Hyperband, 1.0 / 16.0, 1.25),
    (StoppingRule::Hyperband, 1.0 / 16.0, 2.0),
    (StoppingRule::Hyperband, 1.0 / 16.0, 3.0),
    (StoppingRule::Median, 1.0 / 16.0, 2.0),
    (StoppingRule::Median, 1.0 / 4.0, 2.0),
    (StoppingRule::Patience, 1.0 / 16.0, 2.0),
];

fn main() -> Result<(), Box<dyn Error>> {
    let (measured, families) = (tables()?, families());
    let (measured, families): (Vec<&Table>, Vec<&Table>) =
        (measured.iter().collect(), families.iter().collect());
    let default = default_of(20.0)?;
    let own: Candidate = (StoppingRule::Asha, default.grace / 20.0, default.reduction);
    if env::args().any(|argument| argument == "--startup") {
        print_startup(&families, "families", own);
        print_startup(&measured, "measured curves", own);
        return Ok(());
    }
    println!("The default at 20 epochs: grace {}, reduction {}.\n", default.grace, default.reduction);
    println!("{} tables of measured curves, better / worse than none:\n", measured.len());
    compare(&measured, CALM, &CANDIDATES);
    for half in ["fashion", "cifar"] {
        println!("\nOf these, the tables of {half}:\n");
        let tables: Vec<&Table> =
            measured.iter().copied().filter(|table| table.name.starts_with(half)).collect();
        compare(&tables, CALM, &CANDIDATES);
    }
    println!("\n{} families, better / worse than none:\n", families.len());
    compare(&families, CALM, &CANDIDATES);
    for (name, conditions) in [
        ("three reports for each training", Conditions { reports: 3, ..CALM }),
        ("four trials at a time", Conditions { workers: 4, ..CALM }),
    ] {
        println!("\nMeasured curves, {name}:\n");
        compare(
            &measured,
            conditions,
            &[own, (StoppingRule::Asha, 1.0 / 16.0, 2.0), (StoppingRule::Asha, 1.0 / 20.0, 3.0)],
        );
    }
    println!("\nFreeze and thaw on measured curves, against the default and against none:\n");
    print_head();
    let frozen = frozen(&measured);
    for base in [own, NONE] {
        print_row("freeze | | ", &outcomes(&measured, base, CALM), &frozen);
    }
    let tpe = |startup| Conditions { choice: Choice::Suggested(replay::tpe, startup), ..CALM };
    for (name, tables) in [("families", &families), ("measured curves", &measured)] {
        println!("\n`tpe` on {name}, against `tpe` without stopping; then 5 random trials against 10:\n");
        print_head();
        let base = outcomes(tables, NONE, tpe(10));
        for candidate in [own, (StoppingRule::Asha, 0.25, default.reduction)] {
            print_row(&label(candidate), &base, &outcomes(tables, candidate, tpe(10)));
        }
        print_row("5 random | | ", &outcomes(tables, own, tpe(10)), &outcomes(tables, own, tpe(5)));
    }
    print_startup(&families, "families", own);
    print_startup(&measured, "measured curves", own);
    Ok(())
}

fn gp(dims: Dims, startup: usize) -> Box<dyn Suggester> {
    Box::new(Gp::new(dims).with_startup(startup))
}

/// Shorter starts of `gp` against its usual one, with early stopping. A model of many results takes its time, so there are fewer studies and
/// the largest budget is left out.
fn print_startup(tables: &[&Table], name: &str, rule: Candidate) {
    const SEEDS: u64 = 40;
    println!(
        "\nShorter starts of `gp` on {name} under `asha`, studies better / worse than with 16 random trials:\n"
    );
    println!("| random trials | 5 | 10 | 20 |\n|---|---|---|---|");
    let budgets = &BUDGETS[..3];
    let gp = |startup| {
        outcomes_of(
            tables,
            rule,
            Conditions { choice: Choice::Suggested(gp, startup), ..CALM },
            budgets,
            SEEDS,
        )
    };
    let usual = gp(usize::MAX);
    for startup in [4, 5, 7, 10] {
        let short = gp(startup);
        let count = |budget: usize, order: Ordering| {
            let studies = short.best.iter().flatten().zip(usual.best.iter().flatten());
            studies.filter(|(short, usual)| short[budget].total_cmp(&usual[budget]) == order).count()
        };
        let cell =
            |budget| format!("{} / {}", count(budget, Ordering::Less), count(budget, Ordering::Greater));
        println!("| {startup} | {} |", [0, 1, 2].map(cell).join(" | "));
    }
}

/// What a study file gets that only names the rule.
fn default_of(epochs: f64) -> Result<EarlyStopping, Box<dyn Error>> {
    let yaml = format!(
        "{{space: {{x: {{float: [0, 1]}}}}, objective: {{minimize: loss}}, trial: {{epochs: {epochs}}}, \
         search: {{early_stopping: {{rule: asha}}}}}}"
    );
    Ok(Study::from_yaml("study.yaml", &yaml)?.search.early_stopping)
}

/// What studies came to: for each table, for each seed, at each budget.
struct Outcomes {
    tables: Vec<String>,
    best: Vec<Vec<Vec<f64>>>,
    cost: f64,
}

fn outcomes(tables: &[&Table], candidate: Candidate, conditions: Conditions) -> Outcomes {
    outcomes_of(tables, candidate, conditions, &BUDGETS, SEEDS)
}

fn outcomes_of(
    tables: &[&Table],
    (rule, grace, reduction): Candidate,
    conditions: Conditions,
    budgets: &[f64],
    seeds: u64,
) -> Outcomes {
    let (mut names, mut costs, mut best) = (Vec::new(), Vec::new(), Vec::new());
    for table in tables {
        let grace = grace * table.epochs;
        let settings =
            EarlyStopping { rule, grace, reduction, patience: 0.25 * table.epochs, threshold: None };
        let mut of_table = Vec::new();
        for seed in 0..seeds {
            let found = study(table, &settings, conditions, budgets, seed);
            costs.push(found.cost);
            of_table.push(found.best);
        }
        best.push(of_table);
        names.push(table.name.clone());
    }
    let cost = costs.iter().sum::<f64>() / costs.len() as f64;
    Outcomes { tables: names, best, cost }
}

/// The same for freeze and thaw, which has no cost for each trial: what it pauses may be resumed.
fn frozen(tables: &[&Table]) -> Outcomes {
    let of_table = |table: &&Table| (0..SEEDS).map(|seed| freeze::study(table, &BUDGETS, seed)).collect();
    Outcomes {
        tables: tables.iter().map(|table| table.name.clone()).collect(),
        best: tables.iter().map(of_table).collect(),
        cost: 1.0,
    }
}

fn compare(tables: &[&Table], conditions: Conditions, candidates: &[Candidate]) {
    let base = outcomes(tables, NONE, conditions);
    print_head();
    for &candidate in candidates {
        print_row(&label(candidate), &base, &outcomes(tables, candidate, conditions));
    }
}

fn print_head() {
    let budgets = BUDGETS.map(|budget| budget.to_string()).join(" | ");
    println!(
        "| rule | grace | reduction | cost | {budgets} | worse on |\n|---|---|---|---|---|---|---|---|---|"
    );
}

fn label((rule, grace, reduction): Candidate) -> String {
    format!("`{rule}` | 1/{:.0} | {reduction}", 1.0 / grace)
}

fn print_row(label: &str, base: &Outcomes, own: &Outcomes) {
    let mut names = BTreeSet::new();
    let cells: Vec<String> = (0..BUDGETS.len())
        .map(|budget| {
            let (mut better, mut worse) = (0, 0);
            for ((own, base), name) in own.best.iter().zip(&base.best).zip(&base.tables) {
                let pairs = || own.iter().zip(base).map(|(own, base)| (own[budget], base[budget]));
                let wins = pairs().filter(|(own, base)| own < base).count() as f64;
                let losses = pairs().filter(|(own, base)| own > base).count() as f64;
                match is_significant(wins, losses) {
                    true if wins > losses => better += 1,
                    true => {
                        worse += 1;
                        names.insert(name.as_str());
                    }
                    false => {}
                }
            }
            format!("{better} / {worse}")
        })
        .collect();
    let (cost, cells) = (100.0 * own.cost, cells.join(" | "));
    let names: Vec<&str> = names.into_iter().collect();
    println!("| {label} | {cost:.0} % | {cells} | {} |", names.join(", "));
}

/// The sign test, by the normal distribution; ties do not count.
fn is_significant(wins: f64, losses: f64) -> bool {
    let pairs = wins + losses;
    pairs > 0.0 && libm::erfc((wins - losses).abs() / (2.0 * pairs).sqrt()) < SIGNIFICANT
}

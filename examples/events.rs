//! A study inside of an asynchronous program: events as they come, parameters as a type of your own, and an early end.
//!
//! ```sh
//! cargo run --release --example events
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it has found")]

use pollux_tune::{prelude::*, trials::engine::Outcome};
use serde::Deserialize;

/// The parameters as the function below wants them.
#[derive(Deserialize)]
struct Settings {
    lr: f64,
    layers: u32,
}

fn train(settings: &Settings) -> f64 {
    (settings.lr.log10() + 2.5).powi(2) + (f64::from(settings.layers) - 3.0).powi(2)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space =
        Space::builder().add("lr", Domain::log(1e-5, 1.0)?).add("layers", Domain::int(1, 8)?).build()?;
    let study = Study::builder(space).minimize("loss").trials(10_000).parallel(2).build()?;
    let (runner, mut events) = Runner::new(study).events();
    let stop = runner.stop_handle();
    let watch = async move {
        let mut best = f64::INFINITY;
        while let Some(event) = events.next().await {
            let Event::Ended { trial, end: End::Done(values) } = event else { continue };
            if values[0] < best {
                best = values[0];
                println!("trial {trial}: {best:.4}");
            }
            if best < 0.05 {
                // Good enough: running trials are given up, and the study ends.
                stop.stop();
            }
        }
    };
    let study = runner.run_function_async(|trial| {
        let settings: Settings = trial.params().to()?;
        Ok([("loss".to_owned(), train(&settings).into())].into())
    });
    let (finished, ()) = tokio::join!(study, watch);
    let finished = finished?;
    assert_eq!(finished.outcome, Outcome::Stopped, "10000 trials would take longer");
    let settings: Settings = finished.best(1)[0].params.to()?;
    println!(
        "stopped after {} trials: lr {:.2e}, {} layers",
        finished.search().trials().len(),
        settings.lr,
        settings.layers
    );
    Ok(())
}

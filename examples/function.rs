//! A function of your own is tuned: parameters in, metrics out.
//!
//! ```sh
//! cargo run --release --example function
//! ```

#![expect(clippy::print_stdout, reason = "an example shows what it has found")]

use pollux_tune::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let space =
        Space::builder().add("lr", Domain::log(1e-5, 1.0)?).add("layers", Domain::int(1, 8)?).build()?;
    let study = Study::builder(space).minimize("loss").trials(40).build()?;
    let finished = Runner::new(study).run_function(|trial| {
        let (lr, layers) = (trial.params().float("lr")?, trial.params().int("layers")?);
        let loss = (lr.log10() + 2.5).powi(2) + (layers - 3).pow(2) as f64;
        Ok([("loss".to_owned(), loss.into())].into())
    })?;
    for best in finished.best(3) {
        println!("{:.4}  {}", best.metric("loss").unwrap_or(f64::NAN), best.params);
    }
    Ok(())
}

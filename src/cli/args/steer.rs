//! Commands that steer a study: `pause`, `resume` and `enqueue`.

use std::path::PathBuf;

use clap::Args;

/// Launch no trial of a study for now
#[derive(Debug, Args)]
#[command(long_about = ABOUT_PAUSE, arg_required_else_help = true)]
pub(crate) struct PauseArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

const ABOUT_PAUSE: &str = "\
Launch no trial of a study for now

The process that runs the study stays, and so do its machines. Elastic trials save their state and release their slots;
programs run to their end, but those with `elastic: restart` are asked to save and end. The study stays paused until
`resume`, also over a restart of `run`, and its time does not count for `search.timeout`. If nobody runs the study, the
next `run` begins paused.";

/// Launch trials of a paused study again
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ResumeArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

/// Try known parameters before what the search would choose
#[derive(Debug, Args)]
#[command(long_about = ABOUT_ENQUEUE, after_long_help = EXAMPLE, arg_required_else_help = true)]
pub(crate) struct EnqueueArgs {
    /// The folder of the study
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// A value for each parameter that is searched; fixed ones may be left out
    #[arg(value_name = "NAME=VALUE", required = true, value_parser = assignment)]
    pub(crate) values: Vec<(String, String)>,
}

const ABOUT_ENQUEUE: &str = "\
Try known parameters before what the search would choose

The next trial that is created has these values, checked against the space of the study; it counts as one of
`search.trials`. Works while the study runs and while it does not.";

const EXAMPLE: &str = "\
Example:
  pollux-tune enqueue studies/cifar10 lr=0.1 momentum=0.9 optimizer=sgd";

fn assignment(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE, such as lr=0.1")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

//! Studies in databases of Optuna: the tables that its `RDBStorage` makes in `SQLite`.

use std::path::Path;

use rusqlite::{Connection, OpenFlags, Transaction, params};
use serde_json::Value;

use super::Error;

/// The form of the tables: that of Optuna since version 3.2, for which its versions up to 5 need no migration.
const REVISION: &str = "v3.2.0.a";
const SCHEMA_VERSION: u32 = 12;
/// The version that is said to have written the tables.
const LIBRARY_VERSION: &str = "5.0.0";

/// As Optuna makes them, to the letter.
const TABLES: &str = "
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
CREATE TABLE studies (study_id INTEGER NOT NULL, study_name VARCHAR(512) NOT NULL, PRIMARY KEY (study_id));
CREATE TABLE study_directions (study_direction_id INTEGER NOT NULL, direction VARCHAR(8) NOT NULL, study_id INTEGER NOT NULL,
    objective INTEGER NOT NULL, PRIMARY KEY (study_direction_id), UNIQUE (study_id, objective),
    FOREIGN KEY(study_id) REFERENCES studies (study_id));
CREATE TABLE study_system_attributes (study_system_attribute_id INTEGER NOT NULL, study_id INTEGER, \"key\" VARCHAR(512),
    value_json TEXT, PRIMARY KEY (study_system_attribute_id), UNIQUE (study_id, \"key\"),
    FOREIGN KEY(study_id) REFERENCES studies (study_id));
CREATE TABLE study_user_attributes (study_user_attribute_id INTEGER NOT NULL, study_id INTEGER, \"key\" VARCHAR(512),
    value_json TEXT, PRIMARY KEY (study_user_attribute_id), UNIQUE (study_id, \"key\"),
    FOREIGN KEY(study_id) REFERENCES studies (study_id));
CREATE TABLE trials (trial_id INTEGER NOT NULL, number INTEGER, study_id INTEGER, state VARCHAR(8) NOT NULL,
    datetime_start DATETIME, datetime_complete DATETIME, PRIMARY KEY (trial_id),
    FOREIGN KEY(study_id) REFERENCES studies (study_id));
CREATE TABLE trial_heartbeats (trial_heartbeat_id INTEGER NOT NULL, trial_id INTEGER NOT NULL, heartbeat DATETIME NOT NULL,
    PRIMARY KEY (trial_heartbeat_id), UNIQUE (trial_id), FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE trial_intermediate_values (trial_intermediate_value_id INTEGER NOT NULL, trial_id INTEGER NOT NULL,
    step INTEGER NOT NULL, intermediate_value FLOAT, intermediate_value_type VARCHAR(7) NOT NULL,
    PRIMARY KEY (trial_intermediate_value_id), UNIQUE (trial_id, step), FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE trial_params (param_id INTEGER NOT NULL, trial_id INTEGER, param_name VARCHAR(512), param_value FLOAT,
    distribution_json TEXT, PRIMARY KEY (param_id), UNIQUE (trial_id, param_name),
    FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE trial_system_attributes (trial_system_attribute_id INTEGER NOT NULL, trial_id INTEGER, \"key\" VARCHAR(512),
    value_json TEXT, PRIMARY KEY (trial_system_attribute_id), UNIQUE (trial_id, \"key\"),
    FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE trial_user_attributes (trial_user_attribute_id INTEGER NOT NULL, trial_id INTEGER, \"key\" VARCHAR(512),
    value_json TEXT, PRIMARY KEY (trial_user_attribute_id), UNIQUE (trial_id, \"key\"),
    FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE trial_values (trial_value_id INTEGER NOT NULL, trial_id INTEGER NOT NULL, objective INTEGER NOT NULL,
    value FLOAT, value_type VARCHAR(7) NOT NULL, PRIMARY KEY (trial_value_id), UNIQUE (trial_id, objective),
    FOREIGN KEY(trial_id) REFERENCES trials (trial_id));
CREATE TABLE version_info (version_info_id INTEGER NOT NULL, schema_version INTEGER, library_version VARCHAR(256),
    PRIMARY KEY (version_info_id), CHECK (version_info_id=1));
CREATE UNIQUE INDEX ix_studies_study_name ON studies (study_name);
CREATE INDEX ix_trials_study_id ON trials (study_id);
";

/// How all files of `SQLite` begin.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// A study of Optuna.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct OptunaStudy {
    pub(crate) name: String,
    /// `MINIMIZE` or `MAXIMIZE`, for each objective.
    pub(crate) directions: Vec<String>,
    pub(crate) system_attributes: Vec<(String, Value)>,
    pub(crate) user_attributes: Vec<(String, Value)>,
    /// By their numbers, from 0.
    pub(crate) trials: Vec<OptunaTrial>,
}

/// A trial of Optuna.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct OptunaTrial {
    /// `COMPLETE`, `PRUNED`, `FAIL`, `RUNNING` or `WAITING`.
    pub(crate) state: String,
    /// Without a time zone.
    pub(crate) started: Option<String>,
    pub(crate) ended: Option<String>,
    /// One for each objective; those that are not finite are missing when they are read.
    pub(crate) values: Vec<Option<f64>>,
    pub(crate) params: Vec<OptunaParam>,
    /// By step.
    pub(crate) intermediate: Vec<(i64, f64)>,
    pub(crate) system_attributes: Vec<(String, Value)>,
    pub(crate) user_attributes: Vec<(String, Value)>,
}

/// A parameter of a trial.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OptunaParam {
    pub(crate) name: String,
    /// A number, or the place of a choice.
    pub(crate) value: f64,
    pub(crate) distribution: Value,
}

/// Whether a file is a database.
pub(crate) fn is_database(path: &Path) -> bool {
    let begin = std::fs::File::open(path).and_then(|mut file| {
        let mut begin = [0; 16];
        std::io::Read::read_exact(&mut file, &mut begin).map(|()| begin)
    });
    begin.is_ok_and(|begin| begin == *MAGIC)
}

/// Writes a database with one study into a new file.
pub(crate) fn write_optuna(path: &Path, study: &OptunaStudy) -> Result<(), Error> {
    let write = || -> rusqlite::Result<()> {
        let mut connection = Connection::open(path)?;
        // Nobody else knows the file yet.
        connection.execute_batch("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;")?;
        let transaction = connection.transaction()?;
        transaction.execute_batch(TABLES)?;
        write_study(&transaction, study)?;
        transaction.commit()?;
        connection.close().map_err(|(_, error)| error)
    };
    write().map_err(|source| Error::sqlite("write", path, source))
}

fn write_study(to: &Transaction<'_>, study: &OptunaStudy) -> rusqlite::Result<()> {
    to.execute("INSERT INTO alembic_version VALUES (?)", [REVISION])?;
    to.execute("INSERT INTO version_info VALUES (1, ?, ?)", params![SCHEMA_VERSION, LIBRARY_VERSION])?;
    to.execute("INSERT INTO studies VALUES (1, ?)", [&study.name])?;
    for (objective, direction) in (0_i64..).zip(&study.directions) {
        let sql = "INSERT INTO study_directions (direction, study_id, objective) VALUES (?, 1, ?)";
        to.execute(sql, params![direction, objective])?;
    }
    write_attributes(to, "study_system_attributes", "study_id", 1, &study.system_attributes)?;
    write_attributes(to, "study_user_attributes", "study_id", 1, &study.user_attributes)?;
    for (number, trial) in (0..).zip(&study.trials) {
        write_trial(to, number, trial)?;
    }
    Ok(())
}

fn write_trial(to: &Transaction<'_>, number: i64, trial: &OptunaTrial) -> rusqlite::Result<()> {
    let id = number + 1;
    let sql = "INSERT INTO trials VALUES (?, ?, 1, ?, ?, ?)";
    to.prepare_cached(sql)?.execute(params![id, number, trial.state, trial.started, trial.ended])?;
    let sql = "INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (?, ?, ?, ?)";
    for (objective, value) in (0_i64..).zip(&trial.values) {
        let (value, kind) = typed(value.unwrap_or(f64::NAN));
        to.prepare_cached(sql)?.execute(params![id, objective, value, kind])?;
    }
    let sql = "INSERT INTO trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type) VALUES (?, ?, ?, ?)";
    for (step, value) in &trial.intermediate {
        let (value, kind) = typed(*value);
        to.prepare_cached(sql)?.execute(params![id, step, value, kind])?;
    }
    let sql =
        "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) VALUES (?, ?, ?, ?)";
    for OptunaParam { name, value, distribution } in &trial.params {
        to.prepare_cached(sql)?.execute(params![id, name, value, distribution.to_string()])?;
    }
    write_attributes(to, "trial_system_attributes", "trial_id", id, &trial.system_attributes)?;
    write_attributes(to, "trial_user_attributes", "trial_id", id, &trial.user_attributes)
}

fn write_attributes(
    to: &Transaction<'_>,
    table: &str,
    owner: &str,
    id: i64,
    attributes: &[(String, Value)],
) -> rusqlite::Result<()> {
    let sql = format!("INSERT INTO {table} ({owner}, \"key\", value_json) VALUES (?, ?, ?)");
    for (key, value) in attributes {
        to.prepare_cached(&sql)?.execute(params![id, key, value.to_string()])?;
    }
    Ok(())
}

/// A number as Optuna keeps it: what is not finite is only said by its type.
const fn typed(value: f64) -> (Option<f64>, &'static str) {
    if value.is_finite() {
        (Some(value), "FINITE")
    } else if value.is_nan() {
        (None, "NAN")
    } else if value > 0.0 {
        (None, "INF_POS")
    } else {
        (None, "INF_NEG")
    }
}

/// The names of the studies in a database.
pub(crate) fn optuna_studies(path: &Path) -> Result<Vec<String>, Error> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let connection = open(path)?;
        let mut statement = connection.prepare("SELECT study_name FROM studies ORDER BY study_id")?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    read().map_err(|source| Error::sqlite("read", path, source))
}

/// A study of a database, as far as one can learn from it: directions, metric names, trials with parameters and values.
pub(crate) fn read_optuna(path: &Path, name: &str) -> Result<OptunaStudy, Error> {
    let read = || -> rusqlite::Result<OptunaStudy> {
        let mut connection = open(path)?;
        // At one moment: somebody may write.
        read_study(&connection.transaction()?, name)
    };
    read().map_err(|source| Error::sqlite("read", path, source))
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

fn read_study(from: &Transaction<'_>, name: &str) -> rusqlite::Result<OptunaStudy> {
    let id: i64 =
        from.query_row("SELECT study_id FROM studies WHERE study_name = ?", [name], |row| row.get(0))?;
    let mut directions =
        from.prepare("SELECT direction FROM study_directions WHERE study_id = ? ORDER BY objective")?;
    let directions =
        directions.query_map([id], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    let system_attributes = read_attributes(from, "study_system_attributes", id)?;
    let user_attributes = read_attributes(from, "study_user_attributes", id)?;
    let mut trials =
        from.prepare("SELECT trial_id, state FROM trials WHERE study_id = ? ORDER BY trial_id")?;
    let ids = trials.query_map([id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let trials = ids.map(|found| found.and_then(|(id, state)| read_trial(from, id, state)));
    let trials = trials.collect::<rusqlite::Result<_>>()?;
    Ok(OptunaStudy { name: name.to_owned(), directions, system_attributes, user_attributes, trials })
}

fn read_trial(from: &Transaction<'_>, id: i64, state: String) -> rusqlite::Result<OptunaTrial> {
    let mut values =
        from.prepare_cached("SELECT value FROM trial_values WHERE trial_id = ? ORDER BY objective")?;
    let values = values.query_map([id], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let sql =
        "SELECT step, intermediate_value FROM trial_intermediate_values WHERE trial_id = ? ORDER BY step";
    let mut intermediate = from.prepare_cached(sql)?;
    let intermediate = intermediate
        .query_map([id], |row| Ok((row.get(0)?, row.get::<_, Option<f64>>(1)?.unwrap_or(f64::NAN))))?;
    let intermediate = intermediate.collect::<rusqlite::Result<_>>()?;
    let sql = "SELECT param_name, param_value, distribution_json FROM trial_params WHERE trial_id = ? ORDER BY param_id";
    let mut params = from.prepare_cached(sql)?;
    let params = params.query_map([id], |row| {
        let distribution = row.get_ref(2)?.as_str_or_null()?.map(serde_json::from_str);
        let distribution = distribution.and_then(Result::ok).unwrap_or_default();
        Ok(OptunaParam {
            name: row.get(0)?,
            value: row.get::<_, Option<f64>>(1)?.unwrap_or(f64::NAN),
            distribution,
        })
    })?;
    let params = params.collect::<rusqlite::Result<_>>()?;
    Ok(OptunaTrial { state, values, params, intermediate, ..OptunaTrial::default() })
}

fn read_attributes(
    from: &Transaction<'_>,
    table: &str,
    study: i64,
) -> rusqlite::Result<Vec<(String, Value)>> {
    let mut attributes =
        from.prepare(&format!("SELECT \"key\", value_json FROM {table} WHERE study_id = ?"))?;
    let attributes = attributes.query_map([study], |row| {
        let value = row.get_ref(1)?.as_str_or_null()?.map(serde_json::from_str);
        Ok((row.get(0)?, value.and_then(Result::ok).unwrap_or_default()))
    })?;
    attributes.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let path = std::env::temp_dir().join(format!("pollux-tune-optuna-{}.db", std::process::id()));
        let param = OptunaParam {
            name: "lr".to_owned(),
            value: 0.25,
            distribution: json!({"name": "FloatDistribution"}),
        };
        let done = OptunaTrial {
            state: "COMPLETE".to_owned(),
            values: vec![Some(0.5)],
            params: vec![param],
            intermediate: vec![(1, 0.25), (3, 0.5)],
            ..OptunaTrial::default()
        };
        let study = OptunaStudy {
            name: "it's".to_owned(),
            directions: vec!["MAXIMIZE".to_owned()],
            system_attributes: vec![("study:metric_names".to_owned(), json!(["acc"]))],
            user_attributes: Vec::new(),
            trials: vec![done, OptunaTrial { state: "WAITING".to_owned(), ..OptunaTrial::default() }],
        };
        write_optuna(&path, &study).expect("it can be written");
        assert!(is_database(&path));
        assert_eq!(optuna_studies(&path).expect("it can be read"), ["it's"]);
        assert_eq!(read_optuna(&path, "it's").expect("it can be read"), study);
        assert!(read_optuna(&path, "other").is_err());
        std::fs::remove_file(&path).expect("it is ours");
        assert!(optuna_studies(&path).is_err());
    }
}

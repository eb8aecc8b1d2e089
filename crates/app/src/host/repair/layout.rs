//! `pool reshape`: gives a group another layout.

use super::attach::group_called;
use super::draft::{Act, Draft};
use super::{NOTHING_CHANGED, refused};
use crate::api::pool::Word;
use crate::api::{ApiError, Result};
use larder_pool::create::rule_for;

impl<'a> Draft<'a> {
    /// With further devices, if there are any.
    pub fn layout(&mut self, text: &str, word: Word, new: &[String]) -> Result<Act<'a>> {
        let upkeep = self.upkeep;
        let group = group_called(self.pool, text)?;
        let columns = group.rule.layout.columns() + new.len();
        let usage = |message: String| ApiError::usage(message).safe(NOTHING_CHANGED);
        let rule = rule_for(&word.to_string(), columns).map_err(usage)?;
        if rule == group.rule {
            let name = self.pool.name();
            return Err(usage(format!("it is a {word} already"))
                .hint(format!("larder pool attach {name} {text} DEVICE... gives it more devices")));
        }
        let devices = self.join(&group, rule, new)?;
        self.notes.push(format!(
            "all that is stored there is moved into the new layout; until then it survives what it did before: \
             larder pool status {}",
            self.pool.name()
        ));
        Ok(Box::new(move || {
            upkeep.reshape.change_layout(group.index, &rule.name(), devices).map_err(refused)
        }))
    }
}

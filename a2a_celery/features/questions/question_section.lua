-- questions: keep the JSON Schema and the reminders of a question until the client answers. A section has the fields of
-- QuestionSection in question_section.py.
-- requires: pauses, time
--
-- The field `answer_schema` of the record has the schema. The field `reminders` has the reminders that were not posted yet,
-- and the config of the webhook that receives the last one. The sorted set `<key prefix>:reminders` has the time of the next
-- reminder of each task.

local function paused(questions, keys, r)
  if questions.answer_schema then keep_until_resumed(keys, r, 'answer_schema', questions.answer_schema) end
  local first_reminder = questions.reminders[1]
  if not first_reminder then return end
  local reminders = cmsgpack.pack({questions.reminders, questions.escalation})
  keep_until_resumed(keys, r, 'reminders', reminders, now() + first_reminder.after_us)
end

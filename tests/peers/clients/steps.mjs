// Steps that every client of a JavaScript library executes. Like steps.py, it prints the result of each step as a line
// of JSON.

const REQUIRED = {
  card: 'card',
  send: 'send',
  stream: 'stream',
  ask: 'send',
  answer: 'send',
  fail: 'send',
  get: 'get',
  cancel: 'cancel',
  subscribe: 'subscribe',
  list: 'tasks',
  webhook: 'setWebhook',
  webhooks: 'webhooks',
  delete_webhook: 'deleteWebhook',
  unknown: 'get',
  too_late: 'cancel',
};

function table(first, second, hook) {
  const seen = {};
  const shown = (task) => [task.state, task.text];
  const refused = async (call) => {
    try {
      return `no error: ${JSON.stringify(await call)}`;
    } catch (error) {
      return first.error(error);
    }
  };
  return {
    card: () => first.card(),
    send: async () => shown((seen.send = await first.send('hello'))),
    stream: async () => {
      let [state, text] = ['', ''];
      for await (const event of first.stream('count 3')) {
        state = event.state || state;
        text += event.text;
      }
      return [state, text];
    },
    ask: async () => shown((seen.ask = await first.send('ask'))),
    answer: async () => {
      const task = await second.send('blue', { answers: seen.ask });
      return [...shown(task), task.id === seen.ask.id];
    },
    fail: async () => shown(await first.send('fail')),
    get: async () => shown(await second.get(seen.send.id)),
    cancel: async () => (await second.cancel((await first.send('wait', { wait: false })).id)).state,
    subscribe: async () => {
      const begun = await first.send('wait', { wait: false });
      let state = '';
      for await (const event of second.subscribe(begun.id)) {
        if (event.state === 'WORKING' && state !== 'WORKING') await first.cancel(begun.id);
        state = event.state || state;
      }
      return state;
    },
    list: async () => (await second.tasks(seen.ask.contextId)).map((id) => id === seen.ask.id),
    webhook: async () => (await first.send('hello', { webhook: `${hook}/message` })).id,
    webhooks: async () => {
      const begun = await first.send('wait', { wait: false });
      await first.setWebhook(begun.id, `${hook}/task`);
      const urls = await second.webhooks(begun.id);
      await first.cancel(begun.id);
      return [...urls.map((url) => url.replace(hook, '')), begun.id];
    },
    delete_webhook: async () => {
      const begun = await first.send('wait', { wait: false });
      await first.setWebhook(begun.id, `${hook}/deleted`);
      await second.deleteWebhook(begun.id);
      const urls = await first.webhooks(begun.id);
      await first.cancel(begun.id);
      return urls;
    },
    unknown: () => refused(first.get('no-such-task')),
    too_late: () => refused(second.cancel(seen.send.id)),
  };
}

export async function run(client) {
  const [first, second, hook, binding] = process.argv.slice(2);
  const one = await client(first, binding);
  const steps = table(one, await client(second, binding), hook);
  for (const [step, method] of Object.entries(REQUIRED)) {
    if (!one[method]) continue;
    let saw;
    let timer;
    const limit = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error('no end within 90 s')), 90_000);
    });
    try {
      saw = await Promise.race([steps[step](), limit]);
    } catch (error) {
      saw = `${error.name}: ${error.message}`;
    } finally {
      clearTimeout(timer);
    }
    console.log(JSON.stringify({ step, saw }));
  }
  process.exit();
}
